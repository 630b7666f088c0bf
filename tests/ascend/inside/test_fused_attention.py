# SPDX-License-Identifier: Apache-2.0
"""What is given to the device's fused attention, judged by a plain version of its documentation.

This shows that shapes, pages, lengths, mask and scale mean what the operation's description says
they mean. It shows nothing of the operation itself: that runs on an NPU only.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_npu
from torch import Tensor

from diffspec.compact_kv.kernels import TORCH, KernelChoice
from diffspec.compact_kv.rope import LocalRope
from diffspec.compact_kv.working import WorkingCache
from diffspec.hosts.ascend.fused_attention import OPERATION, FusedAttention

SLOTS, HEADS, GROUP, BUDGET, DIM = 5, 2, 3, 384, 32
CPU = torch.device("cpu")


def documented(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None,
    actual_seq_lengths_kv: list[int],
    block_table: Tensor,
    block_size: int,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str,
    scale: float,
    sparse_mode: int,
) -> tuple[Tensor, None]:
    """One request after another, one head after another, in float64."""
    assert (input_layout, sparse_mode) == ("BNSD", 0)
    assert block_size % 128 == 0
    assert block_size <= 512
    assert block_table.dtype == torch.int32
    assert block_table.is_contiguous()
    b, heads, steps, dim = query.shape
    assert heads == num_heads
    assert key.shape[1:] == value.shape[1:] == (num_key_value_heads, block_size, dim)
    assert len(actual_seq_lengths_kv) == len(block_table) == b
    if atten_mask is not None:
        assert atten_mask.dtype == torch.bool  # true: takes no part
        assert atten_mask.shape == (b, 1, steps, block_table.shape[1] * block_size)
    out = torch.empty_like(query)
    for i, length in enumerate(actual_seq_lengths_kv):
        pages = block_table[i, : -(-length // block_size)].long()
        for head in range(heads):
            kv_head = head // (heads // num_key_value_heads)
            k = key[pages, kv_head].flatten(0, 1)[:length].double()
            v = value[pages, kv_head].flatten(0, 1)[:length].double()
            scores = query[i, head].double() @ k.T * scale
            if atten_mask is not None:
                scores = scores.masked_fill(atten_mask[i, 0, :, :length], -torch.inf)
            out[i, head] = (scores.softmax(-1) @ v).to(out.dtype)
    return out, None


@pytest.fixture(autouse=True)
def operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_npu, OPERATION, documented)


def cache(kernels: KernelChoice, **other: Any) -> WorkingCache:
    sizes: dict[str, Any] = {
        "slots": SLOTS, "budget": BUDGET, "heads": HEADS, "head_dim": DIM,
        "dtype": torch.bfloat16, "device": CPU, "query_heads": HEADS * GROUP,
        "rope": LocalRope(torch.ones(1, 2), neox_style=True, dtype=torch.bfloat16),
    }  # fmt: skip
    return WorkingCache(**{**sizes, **other}, kernels=kernels)


FUSED = KernelChoice(OPERATION, build=FusedAttention)


@pytest.mark.parametrize(
    ("slots", "counts"),
    [([3], [200]), ([0, 1, 2], [1, 384, 129]), ([4, 0, 2], [128, 7, 130]), ([1], [384])],
)
def test_it_attends_what_torch_attends(slots: list[int], counts: list[int]) -> None:
    plain, fused = cache(TORCH), cache(FUSED)
    assert str(fused.kernels) == OPERATION
    generator = torch.Generator().manual_seed(1)
    for part in ("k", "v"):
        rows = torch.randn(SLOTS, HEADS, BUDGET, DIM, generator=generator).bfloat16()
        for one in (plain, fused):
            getattr(one, part).copy_(rows)
    q = torch.randn(len(slots), HEADS * GROUP, DIM, generator=generator).bfloat16()
    arguments = (q, torch.tensor(slots), torch.tensor(counts), max(counts), 0.3, -1)
    theirs, ours = fused.attend(*arguments), plain.attend(*arguments)
    assert theirs.shape == (len(slots), HEADS * GROUP * DIM)
    torch.testing.assert_close(theirs, ours, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"dtype": torch.float32}, "keys of type float32"),
        ({"head_dim": 40}, "head dimension 40"),
        ({"budget": 320}, "a budget of 320 tokens is no multiple of 128"),
        ({"query_heads": 3}, "3 query heads on 2 KV heads"),
    ],
)
def test_what_does_not_fit_is_attended_by_torch(other: dict[str, Any], reason: str) -> None:
    assert str(cache(FUSED, **other).kernels) == f"torch ({reason})"


def test_an_operation_that_computes_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        return documented(*args, **{**kwargs, "scale": 2 * kwargs["scale"]})

    monkeypatch.setattr(torch_npu, OPERATION, wrong)
    assert "torch (differs from plain torch by" in str(cache(FUSED).kernels)


def test_an_operation_that_raises_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise OSError("error 561002")

    monkeypatch.setattr(torch_npu, OPERATION, fails)
    assert str(cache(FUSED).kernels) == f"torch (OSError from {OPERATION})"
