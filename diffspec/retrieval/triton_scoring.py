# SPDX-License-Identifier: Apache-2.0
# Kernels are Triton's language in Python's clothes: no types, and capitals for constants.
# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-def,untyped-decorator"
# ruff: noqa: N803
"""Log-sum-exp per granule in one Triton kernel that reads the target's K pages where they lie.

One program takes a tile of consecutive tokens of one KV head and request: it finds their pages in
the block table, reads each key once for all query heads of the group, and writes one number per
query head and granule. Lengths and tables are read on the device; the host waits for nothing.

Importing this module needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from diffspec.compact_kv.kernels import check_fit, must_widen, rows_per_tile


# What differs from call to call must not lead to another compilation under a request.
@triton.jit(
    do_not_specialize=["granules", "table_stride"],
    do_not_specialize_on_alignment=["table", "lengths"],
)
def _score_tile(
    lse,
    query,
    pages,
    table,
    lengths,
    granules,
    scale,
    lse_request_stride,
    lse_head_stride,
    query_request_stride,
    query_head_stride,
    query_dim_stride,
    page_stride,
    head_stride,
    dim_stride,
    token_stride,
    table_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    GRANULE: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    # Heads first: programs that run together then read neighbouring memory of a row-major page.
    head = tl.program_id(0)
    tile = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    length = tl.load(lengths + request)
    token = tile * TOKENS + tl.arange(0, TOKENS)
    inside = token < length
    # Past a request's last page its table names whatever it named before.
    page = tl.load(table + request * table_stride + token // PAGE, mask=inside, other=0)
    place = page.to(tl.int64) * page_stride + (token % PAGE) * token_stride
    dim = tl.arange(0, DIM)
    keys = tl.load(
        pages + head.to(tl.int64) * head_stride + place[None, :] + dim[:, None] * dim_stride,
        mask=inside[None, :],
        other=0.0,
    )  # [DIM, TOKENS]
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
        keys = keys.to(tl.float32)
    scores = tl.dot(q, keys, input_precision="ieee") * scale
    scores = tl.where(inside[None, :], scores, float("-inf"))
    scores = tl.reshape(scores, (ROWS, TOKENS // GRANULE, GRANULE))
    # A granule past the context is all -inf; a finite ceiling keeps it -inf instead of nan.
    top = tl.maximum(tl.max(scores, 2), -1e30)
    total = tl.sum(tl.exp(scores - top[:, :, None]), 2)
    number = tile * (TOKENS // GRANULE) + tl.arange(0, TOKENS // GRANULE)
    tl.store(
        lse + request * lse_request_stride + heads[:, None] * lse_head_stride + number[None, :],
        top + tl.log(total),
        mask=mine[:, None] & (number < granules)[None, :],
    )


_INTERPRETED = not isinstance(_score_tile, triton.JITFunction)


class TileScorer:
    """Fills the scorer's workspace from one layer's pages.

    Args:
        pages: ``[blocks, kv_heads, head_dim, block_size]``, a view of any strides.
        query_heads: query heads on this rank; a multiple of the KV heads.
        scale: factor on ``q · k``.
        granule: tokens per granule; divides ``block_size`` and, as a power of two, a tile.

    Raises:
        ValueError: type, head dimension or granule do not fit the kernel.
    """

    def __init__(self, pages: Tensor, *, query_heads: int, scale: float, granule: int) -> None:
        check_fit(pages.dtype, pages.shape[2])
        self._tokens = rows_per_tile(pages.dtype, pages.shape[2])
        if self._tokens % granule:
            raise ValueError(f"granules of {granule} tokens")
        self._pages, self._scale, self._granule = pages, scale, granule
        self._group = query_heads // pages.shape[1]

    def fill(self, lse: Tensor, query: Tensor, block_table: Tensor, lengths: Tensor) -> None:
        """Overwrite ``lse``.

        Args:
            lse: ``[r, query_heads, granules]`` float32, the last dimension dense; -inf is written
                for granules past a request's length.
            query: ``[r, query_heads, head_dim]``.
            block_table: ``[r, pages]`` integer page numbers, the last dimension dense.
            lengths: ``[r]`` int64, keys each request attends.
        """
        pages, granules = self._pages, lse.shape[2]
        kv_heads, dim, page = pages.shape[1:]
        tiles = triton.cdiv(granules * self._granule, self._tokens)
        _score_tile[kv_heads, tiles, query.shape[0]](
            lse,
            query,
            pages,
            block_table,
            lengths,
            granules,
            self._scale,
            *lse.stride()[:2],
            *query.stride(),
            *pages.stride(),
            block_table.stride(0),
            GROUP=self._group,
            ROWS=max(16, triton.next_power_of_2(self._group)),
            DIM=dim,
            PAGE=page,
            GRANULE=self._granule,
            TOKENS=self._tokens,
            WIDEN=must_widen(_INTERPRETED, query.dtype, pages.dtype),
        )
