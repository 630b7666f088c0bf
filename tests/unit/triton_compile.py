# SPDX-License-Identifier: Apache-2.0
"""Compiles for a GPU what our kernels' objects would launch; needs none. Run in a child process
by ``test_triton_kernels.py``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from diffspec.compact_kv import triton_attention
from diffspec.retrieval import triton_scoring

_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class Compiler:
    """Stands in for a kernel: compiles a launch with the specialisation Triton would choose."""

    def __init__(self, kernel: Any, capability: int, results: list[dict[str, Any]]) -> None:
        self.kernel, self.capability, self.results = kernel, capability, results

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            names = [p.name for p in self.kernel.params]
            signature, fixed, attributes = {}, {}, {}
            values = {**dict(zip(names, arguments, strict=False)), **constants}
            assert list(values) == names
            for index, parameter in enumerate(self.kernel.params):
                value, name = values[parameter.name], parameter.name
                loose = parameter.do_not_specialize
                if parameter.is_constexpr or (type(value) is int and value == 1 and not loose):
                    signature[name], fixed[index,] = "constexpr", value
                elif isinstance(value, Tensor):
                    signature[name] = _POINTERS[value.dtype]
                else:
                    signature[name] = "fp32" if isinstance(value, float) else "i32"
                aligned = isinstance(value, Tensor) or (type(value) is int and value % 16 == 0)
                loose |= parameter.do_not_specialize_on_alignment
                if signature[name] != "constexpr" and aligned and not loose:
                    attributes[index,] = [["tt.divisibility", 16]]
            source = ASTSource(self.kernel, signature, constexprs=fixed, attrs=attributes)
            done = triton.compile(source, target=GPUTarget("cuda", self.capability, 32))
            ptx = done.asm["ptx"]
            self.results.append(
                {
                    "kernel": self.kernel.__name__,
                    "grid": list(grid),
                    "shared": done.metadata.shared,
                    "wide_loads": len(re.findall(r"ld\.global\.v4\.b32", ptx)),
                    "tensor_cores": "mma." in ptx,
                }
            )

        return launch


def compile_kernels(cases: list[tuple[int, str, int, int]], context: int) -> list[Any]:
    """What each case (capability, dtype, head dimension, group) launches."""
    results = []
    kernels = [
        (module, name, value)
        for module in (triton_scoring, triton_attention)
        for name, value in vars(module).items()
        if isinstance(value, triton.JITFunction)
    ]
    for capability, dtype, dim, group in cases:
        results.append([])
        for module, name, kernel in kernels:
            setattr(module, name, Compiler(kernel, capability, results[-1]))
        launch(getattr(torch, dtype), dim, group, context)
    return results


def launch(kind: torch.dtype, dim: int, group: int, context: int) -> None:
    """Everything one retrieval and one draft step launch: 8 requests, 8 KV heads, FlashAttention's
    row-major pages of 16 tokens, a budget of 2048."""
    heads, requests = 8, 8

    def empty(*shape: int, dtype: torch.dtype = kind) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    pages = empty(context, 16, heads, 2 * dim)[..., :dim].permute(0, 2, 3, 1)
    query = empty(requests, heads * group, dim)
    integers = empty(requests, dtype=torch.int64)
    scorer = triton_scoring.TileScorer(pages, query_heads=heads * group, scale=0.1, granule=16)
    scorer.fill(
        empty(requests, heads * group, context // 16, dtype=torch.float32), query,
        empty(requests, context // 16, dtype=torch.int32), integers,
    )  # fmt: skip
    cache = empty(requests, heads, 2048, dim)
    attention = triton_attention.SplitAttention(cache, cache, query_heads=heads * group)
    attention.attend(query, integers, integers, 2048, 0.1)
