# SPDX-License-Identifier: Apache-2.0
"""Attention mass of every chunk under the target's own last query, in one pass over its keys.

For query head h and chunk c, ``s[h, c] = logsumexp over t in c of (q_h · k_t · scale)``; a chunk's
mass is the mean over query heads of ``exp(s[h, c] - logsumexp over chunks of s[h, :])``: exactly
the share of softmax attention that lands in the chunk. Mean-key and min/max bounds (Quest,
arXiv 2406.10774) are cheaper and were measured to miss the source chunk; the mass never did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffspec.compact_kv.kernels import TORCH, KernelChoice, try_kernel
from diffspec.compact_kv.pages import KeyPages

if TYPE_CHECKING:
    from diffspec.retrieval.triton_scoring import TileScorer

#: Keys per product where pages are read in place; large enough to drown the call overhead.
TILE_TOKENS = 8192
#: Bytes of float32 keys per product where they are copied first. Small enough to stay in a
#: processor's cache between the copy and the product, which makes the pass cost one read.
TILE_BYTES = 4 << 20
#: Largest granule of the Triton kernel, tokens: its smallest tile has 32 and holds whole granules.
TRITON_GRANULE = 32


class ChunkScorer:
    """Scores the chunks of up to ``max_requests`` requests at once.

    The unit kept between tiles is the *granule*, ``gcd(chunk_size, page)`` tokens, so that chunk
    and page sizes need not divide each other and ``[heads, context]`` never exists.

    The workspace is allocated here, before the host sizes its KV cache; the pages exist only
    afterwards and are handed in with :meth:`bind`, once.

    Args:
        block_size: tokens per page.
        query_heads: query heads on this rank; a multiple of the KV heads.
        kv_heads: KV heads on this rank.
        head_dim: elements per head.
        dtype: of the pages.
        scale: factor on ``q · k`` (the layer's softmax scale).
        chunk_size: tokens per chunk.
        max_model_len: longest context, tokens.
        max_requests: most requests in one call.
        reduce: sums a ``[requests, chunks]`` tensor of per-rank head sums over tensor-parallel
            ranks, in place; None on one rank.
        total_query_heads: query heads over all ranks.
        kernels: whose kernels fill the workspace; :meth:`bind` goes back to torch, with a reason,
            where Triton's do not fit.

    Attributes:
        kernels: whose kernels work, for logs; final after :meth:`bind`.
    """

    def __init__(
        self,
        *,
        block_size: int,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        scale: float,
        chunk_size: int,
        max_model_len: int,
        max_requests: int,
        device: torch.device,
        reduce: Callable[[Tensor], None] | None = None,
        total_query_heads: int | None = None,
        kernels: KernelChoice = TORCH,
    ) -> None:
        self.scale, self.chunk_size, self.block_size = scale, chunk_size, block_size
        self.query_heads, self.max_requests = query_heads, max_requests
        self.granule = math.gcd(chunk_size, block_size)
        if kernels.kernels == "triton":
            self.granule = math.gcd(self.granule, TRITON_GRANULE)
        self.kernels = kernels
        self._tile_scorer: TileScorer | None = None
        self._reduce = reduce
        self._total_heads = total_query_heads or query_heads
        both = math.lcm(chunk_size, block_size)
        granules = -(-max_model_len // both) * both // self.granule
        shape = (max_requests, query_heads, granules)
        self._lse = torch.zeros(shape, dtype=torch.float32, device=device)
        self._offsets = torch.arange(block_size, device=device)
        page = (kv_heads, head_dim, block_size)
        self._tile_pages = max(max_requests, TILE_BYTES // (4 * math.prod(page)))
        tile = (self._tile_pages, *page)
        self._raw = torch.zeros(tile, dtype=dtype, device=device)
        same = dtype == torch.float32
        self._tile = self._raw if same else torch.zeros(tile, dtype=torch.float32, device=device)
        self._pages: KeyPages | None = None

    def bind(self, pages: KeyPages) -> None:
        """Score these keys from now on.

        Raises:
            ValueError: pages of another shape or type than announced.
        """
        if pages.page_shape != self._tile.shape[1:] or pages.dtype != self._raw.dtype:
            raise ValueError(
                f"{pages.dtype} pages of (heads, head_dim, tokens) {pages.page_shape} do not fit a "
                f"scorer for {self._raw.dtype} pages of {tuple(self._tile.shape[1:])}"
            )
        self._pages = pages
        self.kernels, self._tile_scorer = try_kernel(self.kernels, self._build_tile_scorer)
        if self._tile_scorer is None:
            self.granule = math.gcd(self.chunk_size, self.block_size)
        else:  # only torch copies keys
            self._raw = self._tile = self._raw.new_empty((0, *pages.page_shape))

    def _build_tile_scorer(self) -> TileScorer:
        from diffspec.retrieval.triton_scoring import TileScorer

        assert self._pages is not None
        if (view := self._pages.view) is None:
            raise ValueError(f"pages are {self._pages.layout}")
        scorer = TileScorer(
            view, query_heads=self.query_heads, scale=self.scale, granule=self.granule
        )
        device = view.device
        scorer.fill(
            self._lse[:1],
            torch.zeros((1, self.query_heads, view.shape[2]), dtype=view.dtype, device=device),
            torch.zeros((1, 1), dtype=torch.int32, device=device),
            torch.ones(1, dtype=torch.int64, device=device),
        )
        return scorer

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers held for good."""
        tiles = {id(tile): tile.nbytes for tile in (self._raw, self._tile)}
        return self._lse.nbytes + self._offsets.nbytes + sum(tiles.values())

    def masses(self, query: Tensor, block_table: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Mass of each chunk.

        Args:
            query: ``[r, query_heads, head_dim]``, as the target's attention saw it (rotated).
            block_table: ``[r, >= ceil(longest / block_size)]`` integer page numbers.
            lengths: ``[r]`` int64, keys each request attends.
            longest: the largest of ``lengths``, on the host.

        Returns:
            ``[r, ceil(longest / chunk_size)]`` float32; each row sums to 1, and chunks past a
            request's length have mass 0.
        """
        requests = query.shape[0]
        chunks = -(-longest // self.chunk_size)
        granules = chunks * self.chunk_size // self.granule
        lse = self._lse[:requests, :, :granules]
        if self._tile_scorer is None:
            self._fill(lse, query, block_table, lengths, longest)
        else:
            self._tile_scorer.fill(lse, query, block_table, lengths)
        if self.granule < self.chunk_size:
            lse = lse.view(requests, self.query_heads, chunks, -1).logsumexp(-1)
        mass: Tensor = lse.softmax(-1).sum(1)
        if self._reduce is not None:
            self._reduce(mass)
        return mass / self._total_heads

    def _fill(
        self, lse: Tensor, query: Tensor, block_table: Tensor, lengths: Tensor, longest: int
    ) -> None:
        assert self._pages is not None, "bind() comes first"
        size, requests, granules = self.block_size, query.shape[0], lse.shape[-1]
        grouped = (query.float() * self.scale).view(
            requests, 1, self._pages.heads, -1, self._pages.head_dim
        )
        page_count = -(-longest // size)
        per_page = size // self.granule
        # Only a host's own memory can be looked at without waiting for it.
        numbers = None
        if requests == 1 and block_table.device.type == "cpu":
            numbers = block_table[0, :page_count].numpy()
        for first, last, keys, backwards in self._tiles(block_table, numbers, page_count):
            scores = torch.matmul(grouped, keys)  # [r, pages, kv_heads, group, size]
            if backwards:
                scores = scores.flip(1)
            if requests > 1 or last * size > longest:
                position = self._offsets + size * torch.arange(
                    first, last, device=lengths.device
                ).unsqueeze(-1)
                outside = position >= lengths[:, None, None]
                scores.masked_fill_(outside[:, :, None, None, :], -torch.inf)
            tile = _log_sum_exp(scores.view(*scores.shape[:-1], per_page, -1))
            tile = tile.flatten(2, 3).permute(0, 2, 1, 3).flatten(2)  # [r, heads, granules]
            begin = first * per_page
            end = min(begin + tile.shape[-1], granules)
            lse[:, :, begin:end] = tile[:, :, : end - begin]
        # The last chunk may reach past the last page.
        lse[:, :, page_count * per_page :] = -torch.inf

    def _tiles(
        self, block_table: Tensor, numbers: npt.NDArray[np.int32] | None, page_count: int
    ) -> Iterator[tuple[int, int, Tensor, bool]]:
        """First and last page of each tile, its float32 keys ``[r, pages, kv_heads, head_dim,
        size]``, and whether they come in reverse order.

        One request's pages are mostly neighbours: rising where the cache was empty, falling where
        another request had freed them; then float32 pages are not copied at all.
        """
        assert self._pages is not None
        requests = block_table.shape[0]
        ready = self._raw is self._tile
        wide = max(self._tile_pages, TILE_TOKENS // self.block_size)
        first = 0
        while first < page_count:
            keys, backwards = None, False
            if numbers is not None:
                last = min(first + (wide if ready else self._tile_pages), page_count)
                keys, backwards = self._in_place(numbers[first:last])
            if keys is None:
                last = min(first + self._tile_pages // requests, page_count)
                blocks = block_table[:, first:last].flatten().long()
                keys = self._pages.read(blocks, self._raw[: len(blocks)])
            if not ready:
                keys = self._tile[: len(keys)].copy_(keys)
            yield first, last, keys.view(requests, -1, *keys.shape[1:]), backwards
            first = last

    def _in_place(self, run: npt.NDArray[np.int32]) -> tuple[Tensor | None, bool]:
        """Keys of neighbouring pages without a copy, None if they are none; and whether the pages
        come in reverse order."""
        assert self._pages is not None
        steps = np.diff(run)
        for direction, lowest in ((1, run[0]), (-1, run[-1])):
            if (steps == direction).all():
                return self._pages.in_place(int(lowest), len(run)), direction < 0
        return None, False


def _log_sum_exp(scores: Tensor) -> Tensor:
    """``logsumexp`` over the last dimension in half as many passes; overwrites ``scores``."""
    # A granule past the context is all -inf; a finite ceiling keeps it -inf instead of nan.
    top = scores.amax(-1, keepdim=True).clamp_(min=-1e30)
    return scores.sub_(top).exp_().sum(-1).log_().add_(top.squeeze(-1))
