# SPDX-License-Identifier: Apache-2.0
"""The working cache: the few rows the draft attends, K rotated at local positions.

One fixed block of memory per slot. Rows 0…n-1 are committed; the rows after them are scratch for
one drafting cycle and are overwritten by the next accepted tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from diffspec.compact_kv.kernels import TORCH, AttentionKernel, KernelChoice, try_kernel
from diffspec.compact_kv.rope import LocalRope


class WorkingCache:
    """K and V of ``slots`` requests, ``[slots, heads, budget, head_dim]`` each, zeroed at init.

    Args:
        kernels: whose kernels attend; torch's do, with a reason, where these do not fit.
        query_heads: query heads on this rank, for a kernel's workspace; the cache's heads if None.

    Attributes:
        kernels: whose kernels work, for logs.
    """

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
        kernels: KernelChoice = TORCH,
        query_heads: int | None = None,
    ) -> None:
        shape = (slots, heads, budget, head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.rope = rope
        self._attention: AttentionKernel | None
        self.kernels, self._attention = try_kernel(
            kernels, lambda: self._build_attention(kernels, query_heads or heads)
        )

    def _build_attention(self, kernels: KernelChoice, query_heads: int) -> AttentionKernel:
        attention: AttentionKernel
        if kernels.build is not None:
            attention = kernels.build(self.k, self.v, query_heads)
        else:
            from diffspec.compact_kv.triton_attention import SplitAttention

            attention = SplitAttention(self.k, self.v, query_heads=query_heads)
        zero = torch.zeros(1, dtype=torch.int64, device=self.k.device)
        q = self.k.new_zeros((1, query_heads, self.k.shape[-1]))
        attention.attend(q, zero, zero + 1, 1, 1.0)
        return attention

    @staticmethod
    def slot_bytes(*, budget: int, heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes one slot takes."""
        return 2 * budget * heads * head_dim * dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes held for good."""
        workspace = 0 if self._attention is None else self._attention.nbytes
        return self.k.nbytes + self.v.nbytes + workspace

    def clear(self, slots: Tensor) -> None:
        """Forget what earlier owners left in ``slots`` ``[r]`` (int64).

        A mask adds to scores and zeroes weights, and neither undoes a row that is not finite:
        without this, one request's overflow would outlive it.
        """
        self.k[slots] = 0
        self.v[slots] = 0

    def rebuild(self, slots: Tensor, rows: Tensor, dense: int) -> None:
        """Replace rows 0…n-1 of ``slots``.

        Args:
            slots: ``[r]`` int64.
            dense: the first slot when ``slots`` are consecutive (written in place), else -1.
            rows: ``[r, n, 2, heads, head_dim]``, unrotated K and V in ascending position. Rows
                past a request's own count must be finite; they are never attended.
        """
        r, n = rows.shape[:2]
        v = rows[:, :, 1].transpose(1, 2)
        if dense >= 0:
            self.rope.rotate_prefix(rows[:, :, 0], out=self.k[dense : dense + r, :, :n])
            self.v[dense : dense + r, :, :n].copy_(v)
            return
        k = torch.empty_like(v, memory_format=torch.contiguous_format)
        self.rope.rotate_prefix(rows[:, :, 0], out=k)
        self.k[:, :, :n].index_copy_(0, slots, k)
        self.v[:, :, :n].index_copy_(0, slots, v)

    def put(self, slots: Tensor, positions: Tensor, k: Tensor, v: Tensor) -> None:
        """Write rows one by one: *rotated* ``k``, and ``v``, ``[m, heads, head_dim]`` at local
        ``positions`` ``[m]`` (int64) of ``slots`` ``[m]`` (int64)."""
        self.k[slots, :, positions] = k
        self.v[slots, :, positions] = v

    def put_one(self, slot: int, position: int, k: Tensor, v: Tensor) -> None:
        """:meth:`put` for a single row ``[heads, head_dim]``, addressed from the host."""
        self.k[slot, :, position] = k
        self.v[slot, :, position] = v

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
            ``[b, query_heads · head_dim]`` in the cache's dtype; by a kernel, perhaps a buffer that
            the next call overwrites.
        """
        if self._attention is not None:
            return self._attention.attend(q, slots, counts, longest, scale)
        b, heads = q.shape[0], self.k.shape[1]
        if dense >= 0:
            k, v = self.k[dense : dense + b, :, :longest], self.v[dense : dense + b, :, :longest]
        else:
            k, v = self.k[slots, :, :longest], self.v[slots, :, :longest]
        mask = None
        if b > 1:
            number = torch.arange(longest, device=q.device)
            mask = (number < counts.unsqueeze(-1))[:, None, None, :]
        # The query heads of one KV head are its rows: no key is read twice.
        grouped = q.reshape(b, heads, -1, q.shape[-1])
        return scaled_dot_product_attention(grouped, k, v, mask, scale=scale).flatten(1)
