# SPDX-License-Identifier: Apache-2.0
"""Shorter ways through vLLM's modules for one-row draft steps on a CPU.

A draft step of one row does little arithmetic, and after a target step that streamed the whole KV
cache through the processor's caches its time goes into the layers of calls around each operation.
Where a module is exactly the plain one, the operation it ends in is called directly; anything else
is called as it is. What comes out is compared with the draft's own forward pass at load, as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def linear(module: Any) -> Callable[[Tensor], Tensor]:
    """``x`` → the module's product, without its bias tuple."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    gemm: Any = getattr(module, "cpu_linear", None)
    plain = (
        gemm is not None
        and type(module.quant_method) is UnquantizedLinearMethod
        and module.bias is None
        and getattr(module, "tp_size", 1) == 1
    )
    if not plain:
        return lambda x: module(x)[0]
    return lambda x: gemm(x, module.weight, None)


def _plain_norm(module: Any) -> bool:
    from vllm.model_executor.layers.layernorm import RMSNorm

    return (
        type(module) is RMSNorm
        and module.has_weight
        and module.variance_size_override is None
        and module.weight.device.type == "cpu"
        and hasattr(torch.ops._C, "rms_norm")
        and hasattr(torch.ops._C, "fused_add_rms_norm")
    )


def norm(module: Any) -> Callable[[Tensor], Tensor]:
    """``x`` → normed."""
    if not _plain_norm(module):
        return lambda x: module(x)
    epsilon = module.variance_epsilon

    def normed(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, module.weight, epsilon)
        return out

    return normed


def norm_sum(module: Any) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(x, residual) → (normed sum, sum), both in place of the arguments."""
    if not _plain_norm(module):
        return lambda x, residual: module(x, residual)
    epsilon = module.variance_epsilon

    def normed(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        torch.ops._C.fused_add_rms_norm(x, residual, module.weight, epsilon)
        return x, residual

    return normed


def mlp(module: Any) -> Callable[[Tensor], Tensor]:
    """``x`` → the gated MLP's output."""
    from vllm.model_executor.models.llama import LlamaMLP

    if type(module) is not LlamaMLP:
        return lambda x: module(x)
    up, down, act = linear(module.gate_up_proj), linear(module.down_proj), module.act_fn
    return lambda x: down(act(up(x)))
