# SPDX-License-Identifier: Apache-2.0
"""vLLM-Ascend is imported once, in the order it needs."""

from __future__ import annotations

import importlib

from tests.ascend.inside import fake_npu

fake_npu.install()
# The rotary embedding first: the attention module and it import each other.
for _name in ("ops.rotary_embedding", "attention.attention_v1", "worker.model_runner_v1"):
    importlib.import_module(f"vllm_ascend.{_name}")
