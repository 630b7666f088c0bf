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

    Attributes:
        dtype: of the pages.
    """

    def __init__(self, kv_cache: Tensor, *, block_size: int, heads: int, head_dim: int) -> None:
        self.block_size, self.heads, self.head_dim = block_size, heads, head_dim
        self.num_blocks, self.dtype = kv_cache.shape[0], kv_cache.dtype
        self.rows, self.rows_per_block = _rows(kv_cache, block_size, 2 * heads * head_dim)
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
        self._put(self.row_of(slots), k, v)
        self.heal(slots)

    def _put(self, rows: Tensor, k: Tensor, v: Tensor) -> None:
        self.rows.index_copy_(0, rows, torch.stack((k, v), dim=1).flatten(1))

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

    def heal(self, slots: Tensor) -> None:
        """Pages whose first row is among ``slots`` ``[n]`` are whole again: what follows is written
        in order."""
        if not self.has_holes:
            return
        firsts = slots[slots % self.block_size == 0]
        self.holes[firsts // self.block_size] = False
        self.has_holes = bool(self.holes.any())


class SplitCanonicalCache(CanonicalCache):
    """The same rows on a host that keeps K and V of a layer in two tensors.

    Inside a page of either tensor a row is ``[heads, head_dim]``.

    Args:
        k_cache, v_cache: the draft layer's page tensors, blocks in dimension 0, any inner layout.

    Raises:
        ValueError: as :class:`CanonicalCache`, or the two are not alike.
    """

    def __init__(
        self, k_cache: Tensor, v_cache: Tensor, *, block_size: int, heads: int, head_dim: int
    ) -> None:
        if (k_cache.shape, k_cache.stride(), k_cache.dtype) != (
            v_cache.shape,
            v_cache.stride(),
            v_cache.dtype,
        ):
            raise ValueError(
                f"draft pages of K, {tuple(k_cache.shape)}, and of V, {tuple(v_cache.shape)}, "
                "are not laid out alike"
            )
        self.block_size, self.heads, self.head_dim = block_size, heads, head_dim
        self.num_blocks, self.dtype = k_cache.shape[0], k_cache.dtype
        self.rows, self.rows_per_block = _rows(k_cache, block_size, heads * head_dim)
        self._values, _ = _rows(v_cache, block_size, heads * head_dim)
        self.holes = torch.zeros(self.num_blocks, dtype=torch.bool, device=k_cache.device)
        self.has_holes = False

    def _put(self, rows: Tensor, k: Tensor, v: Tensor) -> None:
        self.rows.index_copy_(0, rows, k.flatten(1))
        self._values.index_copy_(0, rows, v.flatten(1))

    def gather(self, slots: Tensor, out: Tensor) -> Tensor:
        """See :meth:`CanonicalCache.gather`; the result is a view with all K before all V."""
        n, width = slots.shape[0], self.rows.shape[1]
        both = out.view(-1)[: 2 * n * width].view(2, n, width)
        rows = self.row_of(slots)
        torch.index_select(self.rows, 0, rows, out=both[0])
        torch.index_select(self._values, 0, rows, out=both[1])
        return both.view(2, n, self.heads, self.head_dim).transpose(0, 1)


def _rows(pages: Tensor, block_size: int, width: int) -> tuple[Tensor, int]:
    """All rows ``[total, width]`` of dense ``pages``, and how many rows lie from one page's first
    to the next one's."""
    page, stride = pages[0], pages.stride(0)
    span = 1 + sum((n - 1) * s for n, s in zip(page.shape, page.stride(), strict=True))
    if page.numel() != block_size * width or span != page.numel():
        raise ValueError(
            f"draft page of shape {tuple(page.shape)} and strides {page.stride()} is not a "
            f"dense stretch of {block_size} rows of {width} elements"
        )
    if stride % width:
        raise ValueError(f"draft pages are {stride} elements apart, no multiple of {width}")
    total = (pages.shape[0] - 1) * (stride // width) + block_size
    return pages.as_strided((total, width), (width, 1), pages.storage_offset()), stride // width
