# SPDX-License-Identifier: Apache-2.0
"""Attention mass of every chunk under the target's own last query, in one pass over its keys.

For query head h and chunk c, ``s[h, c] = logsumexp over t in c of (q_h · k_t · scale)``; a chunk's
mass is the mean over query heads of ``exp(s[h, c] - logsumexp over chunks of s[h, :])``: exactly
the share of softmax attention that lands in the chunk. Mean-key and min/max bounds (Quest,
arXiv 2406.10774) are cheaper and were measured to miss the source chunk; the mass never did.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from diffspec.compact_kv.pages import KeyPages

#: Keys per pass over the pages. Bounds the workspace; large enough to drown the call overhead.
TILE_TOKENS = 4096


class ChunkScorer:
    """Scores the chunks of up to ``max_requests`` requests at once.

    The unit kept between tiles is the *granule*, ``gcd(chunk_size, page)`` tokens, so that chunk
    and page sizes need not divide each other and ``[heads, context]`` never exists.

    The workspace is allocated here, before the host sizes its KV cache; the pages exist only
    afterwards and are handed in with :meth:`bind`.

    Args:
        block_size: tokens per page.
        query_heads: query heads on this rank; a multiple of the KV heads.
        scale: factor on ``q · k`` (the layer's softmax scale).
        chunk_size: tokens per chunk.
        max_model_len: longest context, tokens.
        max_requests: most requests in one call.
        reduce: sums a ``[requests, chunks]`` tensor of per-rank head sums over tensor-parallel
            ranks, in place; None on one rank.
        total_query_heads: query heads over all ranks.
    """

    def __init__(
        self,
        *,
        block_size: int,
        query_heads: int,
        scale: float,
        chunk_size: int,
        max_model_len: int,
        max_requests: int,
        device: torch.device,
        reduce: Callable[[Tensor], None] | None = None,
        total_query_heads: int | None = None,
    ) -> None:
        self.scale, self.chunk_size, self.block_size = scale, chunk_size, block_size
        self.query_heads, self.max_requests = query_heads, max_requests
        self.granule = math.gcd(chunk_size, block_size)
        self._reduce = reduce
        self._total_heads = total_query_heads or query_heads
        both = math.lcm(chunk_size, block_size)
        granules = -(-max_model_len // both) * both // self.granule
        shape = (max_requests, query_heads, granules)
        self._lse = torch.zeros(shape, dtype=torch.float32, device=device)
        self._offsets = torch.arange(block_size, device=device)
        self._pages: KeyPages | None = None

    def bind(self, pages: KeyPages) -> None:
        """Score these keys from now on.

        Raises:
            ValueError: another page size than announced, or KV heads that do not divide ours.
        """
        if pages.block_size != self.block_size or self.query_heads % pages.heads:
            raise ValueError(
                f"pages of {pages.block_size} tokens and {pages.heads} heads do not fit a scorer "
                f"for {self.block_size} tokens and {self.query_heads} query heads"
            )
        self._pages = pages

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers held for good."""
        return self._lse.nbytes + self._offsets.nbytes

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
        self._fill(lse, query, block_table, lengths, longest)
        per_chunk = lse.view(requests, self.query_heads, chunks, -1).logsumexp(-1)
        mass: Tensor = per_chunk.softmax(-1).sum(1)
        if self._reduce is not None:
            self._reduce(mass)
        return mass / self._total_heads

    def _fill(
        self, lse: Tensor, query: Tensor, block_table: Tensor, lengths: Tensor, longest: int
    ) -> None:
        pages, size = self._pages, self.block_size
        assert pages is not None, "bind() comes first"
        requests, granules = query.shape[0], lse.shape[-1]
        grouped = (query.float() * self.scale).view(requests, 1, pages.heads, -1, pages.head_dim)
        page_count = -(-longest // size)
        step = max(1, TILE_TOKENS // (size * requests))
        per_page = size // self.granule
        for first in range(0, page_count, step):
            last = min(first + step, page_count)
            blocks = block_table[:, first:last].long()
            keys = pages.read(blocks.flatten()).float()
            keys = keys.view(requests, -1, *keys.shape[1:])
            scores = torch.matmul(grouped, keys)  # [r, pages, kv_heads, group, size]
            position = self._offsets + size * torch.arange(
                first, last, device=lengths.device
            ).unsqueeze(-1)
            outside = position >= lengths[:, None, None]
            scores.masked_fill_(outside[:, :, None, None, :], -torch.inf)
            tile = scores.view(*scores.shape[:-1], per_page, -1).logsumexp(-1)
            tile = tile.flatten(2, 3).permute(0, 2, 1, 3).flatten(2)  # [r, heads, granules]
            begin = first * per_page
            end = min(begin + tile.shape[-1], granules)
            lse[:, :, begin:end] = tile[:, :, : end - begin]
        # The last chunk may reach past the last page.
        lse[:, :, page_count * per_page :] = -torch.inf
