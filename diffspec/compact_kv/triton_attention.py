# SPDX-License-Identifier: Apache-2.0
# Kernels are Triton's language in Python's clothes: no types, and capitals for constants.
# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-def,untyped-decorator"
# ruff: noqa: N803
"""Attention of one query per request over its working cache, in two Triton kernels.

One query leaves a device idle if one program walks all rows, so the rows are split (the idea of
Flash-Decoding, T. Dao et al., 2023): each program attends one stretch of rows for all query heads
of a KV head and leaves its maximum, sum and weighted values in a workspace; a second kernel puts
the stretches together. Slots and counts are read on the device and nothing is gathered.

Importing this module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffspec.compact_kv.kernels import check_fit, must_widen, rows_per_tile


# The slots and counts of a call may lie anywhere; a second compilation under a request is worse.
@triton.jit(do_not_specialize_on_alignment=["slots", "counts"])
def _attend_split(
    values_out,
    state_out,
    query,
    keys,
    values,
    slots,
    counts,
    scale,
    query_request_stride,
    query_head_stride,
    query_dim_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    BUDGET: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    split = tl.program_id(0)
    head = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    count = tl.load(counts + request)
    if split * SPLIT >= count:
        return
    position = split * SPLIT + tl.arange(0, SPLIT)
    # Rows past the count are stale and need not be finite: neither their K nor their V is read.
    inside = position < count
    first = (tl.load(slots + request).to(tl.int64) * HEADS + head) * BUDGET
    dim = tl.arange(0, DIM)
    place = (first + position)[:, None] * DIM + dim[None, :]
    k = tl.load(keys + place, mask=inside[:, None], other=0.0)
    v = tl.load(values + place, mask=inside[:, None], other=0.0)
    row = tl.arange(0, ROWS)
    mine = row < GROUP
    heads = head * GROUP + row
    q = tl.load(
        query
        + request * query_request_stride
        + heads[:, None] * query_head_stride
        + dim[None, :] * query_dim_stride,
        mask=mine[:, None],
        other=0.0,
    )
    if WIDEN:
        q = q.to(tl.float32)
        k = k.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(inside[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    weight = tl.exp(scores - top[:, None])
    total = tl.sum(weight, 1)
    weight = weight.to(v.dtype)
    if WIDEN:
        weight = weight.to(tl.float32)
        v = v.to(tl.float32)
    mixed = tl.dot(weight, v, input_precision="ieee")
    at = (request * HEADS * GROUP + heads) * SPLITS + split
    tl.store(state_out + 2 * at, top, mask=mine)
    tl.store(state_out + 2 * at + 1, total, mask=mine)
    tl.store(values_out + at[:, None] * DIM + dim[None, :], mixed, mask=mine[:, None])


@triton.jit(do_not_specialize_on_alignment=["counts"])
def _combine_splits(
    out,
    values_in,
    state_in,
    counts,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
):
    head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    # What other requests or longer counts left behind is not read.
    used = tl.cdiv(tl.load(counts + request), SPLIT)
    row = request * tl.num_programs(0) + head
    split = tl.arange(0, WIDTH)
    state = state_in + 2 * (row * SPLITS + split)
    top = tl.load(state, mask=split < used, other=float("-inf"))
    best = tl.max(top, 0)
    share = tl.load(state + 1, mask=split < used, other=0.0) * tl.exp(top - best)
    dim = tl.arange(0, DIM)
    mixed = tl.zeros((DIM,), dtype=tl.float32)
    for begin in range(0, used, STEP):
        part = begin + tl.arange(0, STEP)
        here = part < used
        peak = tl.load(state_in + 2 * (row * SPLITS + part), mask=here, other=float("-inf"))
        value = tl.load(
            values_in + (row * SPLITS + part)[:, None] * DIM + dim[None, :],
            mask=here[:, None],
            other=0.0,
        )
        mixed += tl.sum(value * tl.exp(peak - best)[:, None], 0)
    mixed = mixed / tl.sum(share, 0)
    tl.store(out + row * DIM + dim, mixed.to(out.dtype.element_ty))


_INTERPRETED = not isinstance(_attend_split, triton.JITFunction)


class SplitAttention:
    """Attends over caches ``k`` and ``v`` ``[slots, heads, budget, head_dim]`` (dense).

    The workspace, float32, is allocated here for all slots at once.

    Args:
        query_heads: query heads on this rank; a multiple of the cache's heads.

    Raises:
        ValueError: type, head dimension or number of heads do not fit the kernel.
    """

    def __init__(self, k: Tensor, v: Tensor, *, query_heads: int) -> None:
        slots, heads, budget, dim = k.shape
        check_fit(k.dtype, dim)
        if query_heads % heads:
            raise ValueError(f"{query_heads} query heads on {heads} KV heads")
        self._k, self._v, self._group = k, v, query_heads // heads
        self._split = rows_per_tile(k.dtype, dim)
        splits = -(-budget // self._split)
        shape = (slots, query_heads, splits)
        self._values = torch.zeros((*shape, dim), dtype=torch.float32, device=k.device)
        self._state = torch.zeros((*shape, 2), dtype=torch.float32, device=k.device)
        self._out = torch.zeros((slots, query_heads * dim), dtype=k.dtype, device=k.device)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers held for good."""
        return self._values.nbytes + self._state.nbytes + self._out.nbytes

    def attend(
        self, q: Tensor, slots: Tensor, counts: Tensor, longest: int, scale: float
    ) -> Tensor:
        """Arguments as of :meth:`WorkingCache.attend`; the result, ``[b, query_heads · head_dim]``
        in the cache's type, is a buffer that the next call overwrites."""
        heads, budget, dim = self._k.shape[1:]
        b, splits = q.shape[0], self._state.shape[2]
        _attend_split[triton.cdiv(longest, self._split), heads, b](
            self._values,
            self._state,
            q,
            self._k,
            self._v,
            slots,
            counts,
            scale,
            *q.stride(),
            HEADS=heads,
            GROUP=self._group,
            ROWS=max(16, triton.next_power_of_2(self._group)),
            DIM=dim,
            BUDGET=budget,
            SPLIT=self._split,
            SPLITS=splits,
            WIDEN=must_widen(_INTERPRETED, q.dtype, self._k.dtype),
        )
        _combine_splits[heads * self._group, b](
            self._out,
            self._values,
            self._state,
            counts,
            DIM=dim,
            SPLIT=self._split,
            SPLITS=splits,
            WIDTH=triton.next_power_of_2(splits),
            STEP=8,
        )
        return self._out[:b]
