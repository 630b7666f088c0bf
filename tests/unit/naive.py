# SPDX-License-Identifier: Apache-2.0
"""Slow and obvious float64 versions of what the core computes, to compare it with."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from diffspec.retrieval.selection import SelectionPlan

Array = npt.NDArray[np.float64]


def rotate(
    x: Array, position: npt.ArrayLike, rotary_dim: int, base: float, neox: bool = True
) -> Array:
    """Rotate heads ``[..., head_dim]`` at positions that broadcast to ``[...]``.

    Pairs of elements, as complex numbers, are multiplied by e^(i angle).
    """
    out = np.array(x, dtype=np.float64)
    half = rotary_dim // 2
    first = slice(0, half) if neox else slice(0, rotary_dim, 2)
    second = slice(half, rotary_dim) if neox else slice(1, rotary_dim, 2)
    angles = np.asarray(position)[..., None] * base ** (-2 * np.arange(half) / rotary_dim)
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def attend(q: Array, keys: Array, values: Array, scale: float) -> Array:
    """``q [query_heads, d]`` over ``keys``, ``values [n, kv_heads, d]``: ``[query_heads, d]``."""
    group = q.shape[0] // keys.shape[1]
    out = np.empty_like(q)
    for head in range(q.shape[0]):
        weights = keys[:, head // group] @ q[head] * scale
        weights = np.exp(weights - weights.max())
        out[head] = weights / weights.sum() @ values[:, head // group]
    return out


def chunk_masses(q: Array, keys: Array, scale: float, chunk: int) -> Array:
    """Share of softmax attention in each chunk, mean over query heads."""
    group = q.shape[0] // keys.shape[1]
    count = math.ceil(len(keys) / chunk)
    masses = np.zeros(count)
    for head in range(q.shape[0]):
        weights = keys[:, head // group] @ q[head] * scale
        weights = np.exp(weights - weights.max())
        weights /= weights.sum()
        for number in range(count):
            masses[number] += weights[number * chunk : (number + 1) * chunk].sum()
    return masses / q.shape[0]


def select(
    masses: Sequence[float],
    count: int,
    plan: SelectionPlan,
    present: Collection[int] = (),
    blocked: Collection[int] = (),
) -> list[int]:
    """The chunks of one request, ascending."""
    allowed = [c for c in range(count) if c not in blocked]
    fixed = [c for c in allowed if c < plan.sink or c >= count - plan.window]
    free = [c for c in allowed if c not in fixed]
    free.sort(key=lambda c: -masses[c] * (1.1 if c in present else 1.0))
    heavy = free[: max(1, plan.picks // (2 * (1 + plan.successors)))]
    wanted = [h + step for step in range(plan.successors + 1) for h in heavy]
    picked: list[int] = []
    for c in [c for c in wanted if c in free] + free:
        if c not in picked and len(picked) < plan.picks:
            picked.append(c)
    return sorted(fixed + picked)


class Recorder(TorchDispatchMode):
    """Notes the torch operations that are no mere views, and the largest tensor returned."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operations.append(str(func))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


def double(x: Tensor) -> Array:
    """A tensor as a float64 array."""
    array: Array = x.detach().to(torch.float64).numpy()
    return array
