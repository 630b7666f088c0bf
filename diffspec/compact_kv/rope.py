# SPDX-License-Identifier: Apache-2.0
"""Rotary positions counted inside the working cache instead of inside the document.

A draft trained on a short window has never seen large rotary positions; numbering the selected
slots 0…n-1 keeps every position inside the window it was trained on, whatever the context length.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LocalRope:
    """Rotates heads by a table of cosines and sines.

    Args:
        cos_sin: ``[positions, rotary_dim]``, cosines in the first half of the last dimension and
            sines in the second (vLLM's ``cos_sin_cache``).
        neox_style: pair dimension ``j`` with ``j + rotary_dim / 2`` (Llama) instead of with
            ``j + 1`` (GPT-J).
        dtype: dtype of the rotated heads.

    Raises:
        ValueError: the table's last dimension is odd.
    """

    def __init__(self, cos_sin: Tensor, *, neox_style: bool, dtype: torch.dtype) -> None:
        if cos_sin.shape[-1] % 2:
            raise ValueError(f"rotary dimension {cos_sin.shape[-1]} is odd")
        self.positions, self.rotary_dim = cos_sin.shape
        self.neox_style = neox_style
        cos, sin = cos_sin.to(dtype).chunk(2, dim=-1)
        # A heads dimension of one, so that both broadcast over [..., heads, rotary_dim / 2].
        self.cos = cos.unsqueeze(-2).contiguous()
        self.sin = sin.unsqueeze(-2).contiguous()

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate ``x`` ``[n, heads, head_dim]`` at ``positions`` ``[n]`` (int64)."""
        return self._apply(x, self.cos[positions], self.sin[positions])

    def rotate_prefix(self, x: Tensor, out: Tensor) -> None:
        """Rotate ``x`` ``[r, n, heads, head_dim]`` at positions 0…n-1 into ``out``, which is
        ``[r, heads, n, head_dim]``: four passes and no temporary for the usual (neox) style."""
        n = x.shape[1]
        x = x.transpose(1, 2)
        cos, sin = self.cos[:n, 0], self.sin[:n, 0]
        if not self.neox_style:
            out.copy_(self._apply(x, cos, sin))
            return
        half = self.rotary_dim // 2
        a, b = x[..., :half], x[..., half : self.rotary_dim]
        first, second = out[..., :half], out[..., half : self.rotary_dim]
        torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
        torch.mul(b, cos, out=second).addcmul_(a, sin)
        if self.rotary_dim < x.shape[-1]:
            out[..., self.rotary_dim :].copy_(x[..., self.rotary_dim :])

    def _apply(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        if self.neox_style:
            a, b = turned.chunk(2, dim=-1)
        else:
            a, b = turned[..., ::2], turned[..., 1::2]
        first, second = a * cos - b * sin, b * cos + a * sin
        if self.neox_style:
            parts = [first, second]
        else:
            parts = [torch.stack((first, second), dim=-1).flatten(-2)]
        return torch.cat([*parts, rest] if rest.shape[-1] else parts, dim=-1)
