# SPDX-License-Identifier: Apache-2.0
"""DiffSpec on vLLM-Ascend: written against its sources, never run on an NPU yet."""
