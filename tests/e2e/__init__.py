# SPDX-License-Identifier: Apache-2.0
"""Tests through the installed command and the served endpoint."""
