# SPDX-License-Identifier: Apache-2.0
"""Measurements whose results are committed under ``evidence/``; run from the repository root."""
