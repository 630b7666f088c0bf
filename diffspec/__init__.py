# SPDX-License-Identifier: Apache-2.0
"""Differential speculative decoding for long sequences: an out-of-tree vLLM plugin."""

__version__ = "0.1.0"
