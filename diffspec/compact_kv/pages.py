# SPDX-License-Identifier: Apache-2.0
"""Reading the target's paged keys in whatever layout its attention backend stores them.

The layout is not assumed: keys coded with their own place are written through the backend's
own cache-write operation, and where they landed is the layout. A layout that is a fixed stride
in every direction (row-major, transposed, heads inside or outside) is read through a view; any
other one (AMX packing) through a permutation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# bfloat16 holds every integer up to 256 exactly, so a digit of base 128 plus one survives it.
_BASE = 128


class KeyPages:
    """A read-only view of one target layer's K pages.

    Attributes:
        block_size: tokens per page.
        heads: KV heads on this rank.
        head_dim: elements per head.
        dtype: of the keys.
        layout: ``"strided"`` or ``"permuted"``, for logs.
    """

    def __init__(self, kv_cache: Tensor, places: Tensor, *, whole: bool = False) -> None:
        """
        Args:
            kv_cache: the layer's page tensor, blocks in dimension 0.
            places: ``[block_size, heads, head_dim]`` int64, the offset inside a page's memory
                at which each key element lies (see :func:`find_key_places`).
            whole: pages are always copied as they lie and turned afterwards, for devices whose
                operations would first copy all of a tensor that is not dense.

        Raises:
            ValueError: ``whole``, and the pages are not dense or have no regular layout.
        """
        self.block_size, self.heads, self.head_dim = places.shape
        self.dtype = kv_cache.dtype
        base = int(places[0, 0, 0])
        token, head, dim = (
            int(places[tuple(int(i == axis) for i in range(3))]) - base
            if places.shape[axis] > 1
            else 0
            for axis in range(3)
        )
        t, h, d = (torch.arange(n, device=places.device) for n in places.shape)
        affine = base + t[:, None, None] * token + h[:, None] * head + d * dim
        blocks, stride, offset = kv_cache.shape[0], kv_cache.stride(0), kv_cache.storage_offset()
        self._permutation: Tensor | None = None
        self._turned: tuple[int, int, int, int] | None = None
        # A view cannot go backwards in memory; such a layout is regular but read by permutation.
        if min(token, head, dim) >= 0 and torch.equal(affine, places):
            self.layout = "strided"
            self._pages = kv_cache.as_strided(
                (blocks, self.heads, self.head_dim, self.block_size),
                (stride, head, dim, token),
                offset + base,
            )
        else:
            self.layout = "permuted"
            page = int(places.max()) + 1
            self._pages = kv_cache.as_strided((blocks, page), (stride, 1), offset)
            self._permutation = places.permute(1, 2, 0).flatten().contiguous()
        if whole:
            if self._permutation is not None or base or stride != places.numel():
                raise ValueError("pages are not dense stretches of keys in a regular layout")
            self._turned = (places.numel(), head, dim, token)
            self._pages = kv_cache.as_strided((blocks, stride), (stride, 1), offset)

    @property
    def page_shape(self) -> tuple[int, int, int]:
        """Shape of one page as read: ``(heads, head_dim, block_size)``."""
        return self.heads, self.head_dim, self.block_size

    @property
    def view(self) -> Tensor | None:
        """All pages where they lie, ``[blocks, heads, head_dim, block_size]``; None where the
        layout allows no view."""
        return self._pages if self._permutation is None and self._turned is None else None

    def read(self, blocks: Tensor, out: Tensor | None = None) -> Tensor:
        """Keys of ``blocks`` ``[n]`` (int64) as ``[n, heads, head_dim, block_size]``, written to
        ``out``, dense, of that shape and the pages' dtype, if it is given."""
        if self._turned is not None:
            pages = self._pages.index_select(0, blocks)
            keys = pages.as_strided((len(blocks), *self.page_shape), self._turned)
            return keys if out is None else out.copy_(keys)
        if self._permutation is None:
            return torch.index_select(self._pages, 0, blocks, out=out)
        flat = None if out is None else out.view(blocks.shape[0], -1)
        keys = torch.index_select(
            self._pages.index_select(0, blocks), 1, self._permutation, out=flat
        )
        return keys.view(-1, *self.page_shape)

    def in_place(self, first: int, count: int) -> Tensor | None:
        """Keys of the consecutive pages ``first`` … ``first + count - 1`` without a copy, shaped
        as by :meth:`read`; None where the layout allows no view."""
        if self._permutation is not None or self._turned is not None:
            return None
        return self._pages[first : first + count]


def find_key_places(
    write: Callable[[Tensor, Tensor, Tensor, Tensor], None],
    kv_cache: Tensor,
    *,
    block_size: int,
    heads: int,
    head_dim: int,
) -> Tensor:
    """Find where a backend stores each key element inside a page.

    Args:
        write: ``write(key, value, pages, slots)``, the backend's cache-write operation; ``key``
            and ``value`` are ``[block_size, heads, head_dim]``, ``slots`` ``[block_size]`` int64.
        kv_cache: the layer's real page tensor; only its shape, strides and dtype are used.

    Returns:
        ``[block_size, heads, head_dim]`` int64 offsets into a page's memory.

    Raises:
        ValueError: some key element was not found, or two share one place.
    """
    count = block_size * heads * head_dim
    shape = (block_size, heads, head_dim)
    device, dtype = kv_cache.device, kv_cache.dtype
    index = torch.arange(count, device=device)
    slots = torch.arange(block_size, device=device)
    value = torch.zeros(shape, dtype=dtype, device=device)
    found: Tensor | None = None
    scale, rest = 1, index
    while scale < count:
        digit = rest % _BASE + 1  # never zero: a zero place was not written
        scratch = torch.zeros_like(kv_cache[:1])
        write(digit.to(dtype).view(shape).contiguous(), value, scratch, slots)
        page = scratch[0]
        memory = page.as_strided((page.numel(),), (1,), page.storage_offset())
        seen = memory.long()
        found = torch.where(seen > 0, (seen - 1) * scale, -1) + (0 if found is None else found)
        scale, rest = scale * _BASE, rest // _BASE
    if found is None:
        raise ValueError("a page must hold more than one key element")
    if scratch[0].stride() != kv_cache[0].stride():
        raise ValueError(f"page of strides {kv_cache[0].stride()} is not one stretch of memory")
    at = (found >= 0).nonzero().flatten()
    codes = found[at]
    if codes.numel() != count or not torch.equal(codes.sort().values, index):
        raise ValueError(
            f"{codes.numel()} of {count} coded key elements found in a page of "
            f"{kv_cache[0].numel()}: this cache layout is not understood"
        )
    places = torch.empty(count, dtype=torch.int64, device=device)
    places[codes] = at
    return places.view(shape)
