# SPDX-License-Identifier: Apache-2.0
"""Tests that run in the environment of vLLM-Ascend; see ``tests/ascend/test_inside.py``."""
