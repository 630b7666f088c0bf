# SPDX-License-Identifier: Apache-2.0
"""The canonical draft cache: unrotated K and V of every slot, in the host's own pages.

The host allocates pages for the draft layer and maps every token to one; under DiffSpec nobody
else reads or writes them. Keeping our rows there gives prefix caching, preemption, chunked
prefill and memory accounting for free.
"""

from __future__ import annotations

import torch
from torch import Tensor


class CanonicalCache:
    """Rows of K and V addressed by host slot, laid out our own way inside each host page.

    Inside a page a row is ``[2, heads, head_dim]`` (K, then V), rows follow one another, and a
    row never crosses a page. Blocks are ``kv_cache.stride(0)`` apart whatever lies between them.

    Args:
        kv_cache: the draft layer's page tensor, blocks in dimension 0, any inner layout.
        block_size: tokens per page, at the granularity of the host's block table.
        heads: KV heads on this rank.
        head_dim: elements per head.

    Raises:
        ValueError: a page is not one dense stretch of ``block_size`` rows, or the distance
            between pages is not a whole number of rows.
    """

    def __init__(self, kv_cache: Tensor, *, block_size: int, heads: int, head_dim: int) -> None:
        row = 2 * heads * head_dim
        page, stride = kv_cache[0], kv_cache.stride(0)
        span = 1 + sum((n - 1) * s for n, s in zip(page.shape, page.stride(), strict=True))
        if page.numel() != block_size * row or span != page.numel():
            raise ValueError(
                f"draft page of shape {tuple(page.shape)} and strides {page.stride()} is not a "
                f"dense stretch of {block_size} rows of {row} elements"
            )
        if stride % row:
            raise ValueError(f"draft pages are {stride} elements apart, no multiple of {row}")
        self.block_size, self.heads, self.head_dim = block_size, heads, head_dim
        self.rows_per_block = stride // row
        self.num_blocks = kv_cache.shape[0]
        total = (self.num_blocks - 1) * self.rows_per_block + block_size
        self.rows = kv_cache.as_strided((total, row), (row, 1), kv_cache.storage_offset())
        self.holes = torch.zeros(self.num_blocks, dtype=torch.bool, device=kv_cache.device)
        #: Host-side shortcut: no look-up on the hot path while no page was ever marked.
        self.has_holes = False

    def row_of(self, slots: Tensor) -> Tensor:
        """Row numbers of host ``slots`` (int64 of any shape: block · block_size + offset)."""
        if self.rows_per_block == self.block_size:
            return slots
        blocks = slots // self.block_size
        return blocks * self.rows_per_block + slots % self.block_size

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write unrotated ``k`` and ``v`` ``[n, heads, head_dim]`` at ``slots`` ``[n]``."""
        self.rows.index_copy_(0, self.row_of(slots), torch.stack((k, v), dim=1).flatten(1))
        if self.has_holes:
            self._heal(slots)

    def gather(self, slots: Tensor, out: Tensor) -> Tensor:
        """Copy the rows of ``slots`` ``[n]`` into ``out``; returns ``[n, 2, heads, head_dim]``.

        ``out`` is a buffer of at least ``n · 2 · heads · head_dim`` elements of the pages' dtype.
        """
        n, width = slots.shape[0], self.rows.shape[1]
        flat = out.view(-1)[: n * width].view(n, width)
        torch.index_select(self.rows, 0, self.row_of(slots), out=flat)
        return flat.view(n, 2, self.heads, self.head_dim)

    def mark_holes(self, slots: Tensor) -> None:
        """Remember that the pages of ``slots`` hold rows that were never written.

        Negative slots (a host's padding) name no page and are passed over.
        """
        self.holes[torch.unique(slots[slots >= 0] // self.block_size)] = True
        self.has_holes = True

    def _heal(self, slots: Tensor) -> None:
        # Rewritten from its first row, a page is whole again: what follows is written in order.
        firsts = slots[slots % self.block_size == 0]
        self.holes[firsts // self.block_size] = False
        self.has_holes = bool(self.holes.any())
