# SPDX-License-Identifier: Apache-2.0
"""Attention over working caches by Ascend's fused operation. Written, never run on an NPU.

``npu_fused_infer_attention_score`` attends queries over pages named by a block table. A working
cache is read as such pages where it lies: every KV head of every slot is a request of its own,
with one KV head and the query heads of its group, and its rows are pages that follow one another.
So no row is copied, whichever slots a step drafts for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

#: The operation's name, for logs.
OPERATION = "npu_fused_infer_attention_score"
#: Rows per page; the operation takes multiples of 128 up to 512.
PAGE = 128
#: Largest difference from plain torch, relative to its largest element, at the comparison at start.
_TOLERANCE = 2e-2


class FusedAttention:
    """Attends over caches ``k`` and ``v`` ``[slots, heads, budget, head_dim]`` (dense).

    Args:
        query_heads: query heads on this rank; a multiple of the cache's heads.

    Raises:
        ValueError: type or sizes do not fit the operation, or what it computes differs from plain
            torch on random rows.
    """

    def __init__(self, k: Tensor, v: Tensor, query_heads: int) -> None:
        import torch_npu

        slots, heads, budget, dim = k.shape
        if k.dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"keys of type {str(k.dtype).removeprefix('torch.')}")
        if dim % 16 or dim > 512:
            raise ValueError(f"head dimension {dim}")
        if budget % PAGE:
            raise ValueError(f"a budget of {budget} tokens is no multiple of {PAGE}")
        if query_heads % heads or query_heads // heads > 64:
            raise ValueError(f"{query_heads} query heads on {heads} KV heads")
        self._attend: Any = getattr(torch_npu, OPERATION)
        self._heads, self._group = heads, query_heads // heads
        # [slots · heads · pages, one KV head, rows of a page, head_dim]
        self._k, self._v = k.view(-1, 1, PAGE, dim), v.view(-1, 1, PAGE, dim)
        device = k.device
        self._tables = torch.arange(len(self._k), dtype=torch.int32, device=device)
        self._tables = self._tables.view(slots, heads, budget // PAGE)
        self._rows = torch.arange(budget, device=device)
        self._compare()

    @property
    def nbytes(self) -> int:
        """Bytes held for good."""
        return self._tables.nbytes + self._rows.nbytes

    def attend(
        self, q: Tensor, slots: Tensor, counts: Tensor, longest: int, scale: float
    ) -> Tensor:
        """See :meth:`~diffspec.compact_kv.working.WorkingCache.attend`."""
        return self._run(self._k, self._v, q, self._tables[slots], counts, longest, scale)

    def _run(
        self,
        k: Tensor,
        v: Tensor,
        q: Tensor,
        tables: Tensor,
        counts: Tensor,
        longest: int,
        scale: float,
    ) -> Tensor:
        b, pages = q.shape[0], -(-longest // PAGE)
        # Lengths go in from the host, which knows the longest; shorter requests are masked.
        mask = None
        if b > 1:
            rows = self._rows[: pages * PAGE]
            mask = (rows >= counts.unsqueeze(-1)).repeat_interleave(self._heads, 0)
            mask = mask[:, None, None, :]
        out: Tensor = self._attend(
            q.reshape(b * self._heads, self._group, 1, q.shape[-1]),
            k,
            v,
            atten_mask=mask,
            actual_seq_lengths_kv=[longest] * (b * self._heads),
            block_table=tables[:, :, :pages].flatten(0, 1).contiguous(),
            block_size=PAGE,
            num_heads=self._group,
            num_key_value_heads=1,
            input_layout="BNSD",
            scale=scale,
            sparse_mode=0,
        )[0]
        return out.view(b, -1)

    def _compare(self) -> None:
        """Two requests of different lengths on random rows, against plain torch."""
        k = self._k
        pages, dim = min(2, self._tables.shape[-1]), k.shape[-1]
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(k.device, k.dtype)

        keys, values = (random(2 * self._heads * pages, 1, PAGE, dim) for _ in range(2))
        q = random(2, self._heads * self._group, dim)
        tables = torch.arange(len(keys), dtype=torch.int32, device=k.device).flip(0)
        tables = tables.view(2, self._heads, pages)
        lengths = (pages * PAGE - 27, 5)
        counts = torch.tensor(lengths, device=k.device)
        theirs = self._run(keys, values, q, tables, counts, lengths[0], dim**-0.5)
        for i, length in enumerate(lengths):
            k, v = (x[tables[i]].view(self._heads, -1, dim)[:, :length] for x in (keys, values))
            grouped = q[i].view(self._heads, self._group, dim)
            ours = scaled_dot_product_attention(grouped, k, v, scale=dim**-0.5).flatten()
            error = float((theirs[i].float() - ours.float()).abs().max())
            if not error <= _TOLERANCE * max(1.0, float(ours.float().abs().max())):
                raise ValueError(f"differs from plain torch by {error:.1e}")
