# SPDX-License-Identifier: Apache-2.0
"""The working cache: the few rows the draft attends, K rotated at local positions.

One fixed block of memory per slot. Rows 0…n-1 are committed; the rows after them are scratch for
one drafting cycle and are overwritten by the next accepted tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffspec.compact_kv.rope import LocalRope


class WorkingCache:
    """K and V of ``slots`` requests, ``[slots, heads, budget, head_dim]`` each, zeroed at init."""

    def __init__(
        self,
        *,
        slots: int,
        budget: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        rope: LocalRope,
    ) -> None:
        shape = (slots, heads, budget, head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.rope = rope

    @staticmethod
    def slot_bytes(*, budget: int, heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes one slot takes."""
        return 2 * budget * heads * head_dim * dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes held for good."""
        return self.k.nbytes + self.v.nbytes

    def clear(self, slots: Tensor) -> None:
        """Forget what earlier owners left in ``slots`` ``[r]`` (int64).

        Masking makes stale K harmless whatever it holds, but zero weight times a V that is not
        finite is not zero: without this, one request's overflow would outlive it.
        """
        self.v[slots] = 0

    def rebuild(self, slots: Tensor, rows: Tensor) -> None:
        """Replace rows 0…n-1 of ``slots``.

        Args:
            slots: ``[r]`` int64.
            rows: ``[r, n, 2, heads, head_dim]``, unrotated K and V in ascending position. Rows
                past a request's own count must be finite; they are never attended.
        """
        n = rows.shape[1]
        k = self.rope.rotate_prefix(rows[:, :, 0]).transpose(1, 2)
        v = rows[:, :, 1].transpose(1, 2)
        self.k[:, :, :n].index_copy_(0, slots, k)
        self.v[:, :, :n].index_copy_(0, slots, v)

    def put(self, slots: Tensor, positions: Tensor, k: Tensor, v: Tensor) -> None:
        """Write rows one by one: unrotated ``k``, ``v`` ``[m, heads, head_dim]`` at local
        ``positions`` ``[m]`` (int64) of ``slots`` ``[m]`` (int64)."""
        self.k[slots, :, positions] = self.rope.rotate(k, positions)
        self.v[slots, :, positions] = v

    def attend(
        self, q: Tensor, slots: Tensor, counts: Tensor, longest: int, scale: float, dense: int
    ) -> Tensor:
        """Softmax attention of one query per request over its own rows.

        Args:
            q: ``[b, query_heads, head_dim]``, rotated.
            slots: ``[b]`` int64.
            counts: ``[b]`` int64, rows each request attends.
            longest: the largest of ``counts``, on the host.
            scale: factor on ``q · k``.
            dense: the first slot when ``slots`` are consecutive (read in place), else -1.

        Returns:
            ``[b, query_heads · head_dim]`` in the cache's dtype.
        """
        b, heads = q.shape[0], self.k.shape[1]
        if dense >= 0:
            k, v = self.k[dense : dense + b, :, :longest], self.v[dense : dense + b, :, :longest]
        else:
            k, v = self.k[slots, :, :longest], self.v[slots, :, :longest]
        grouped = q.reshape(b, heads, -1, q.shape[-1])
        scores = torch.matmul(grouped, k.transpose(-1, -2)).float() * scale
        if b > 1:
            number = torch.arange(longest, device=q.device)
            scores.masked_fill_((number >= counts.unsqueeze(-1))[:, None, None, :], -torch.inf)
        return torch.matmul(scores.softmax(-1).to(v.dtype), v).flatten(1)
