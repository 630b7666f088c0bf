# SPDX-License-Identifier: Apache-2.0
"""Tests that run a real vLLM engine on the CPU."""
