# SPDX-License-Identifier: Apache-2.0
"""Adapters to the engines that DiffSpec runs in."""
