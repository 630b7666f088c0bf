# SPDX-License-Identifier: Apache-2.0
"""Which kernels do a hot operation on a device: plain torch, our own in Triton, or a host's.

The choice falls once, while buffers are allocated, and carries its reason for the log. Triton is
imported only where it was chosen.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

logger = logging.getLogger("vllm.diffspec")

_Kernel = TypeVar("_Kernel")


class AttentionKernel(Protocol):
    """Attends over working caches; made of their k and v and the number of query heads."""

    @property
    def nbytes(self) -> int:
        """Bytes held for good."""

    def attend(
        self, q: Tensor, slots: Tensor, counts: Tensor, longest: int, scale: float
    ) -> Tensor:
        """See :meth:`~diffspec.compact_kv.working.WorkingCache.attend`."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Whose kernels: ``"torch"``, ``"triton"`` (ours) or the name of an operation that a host
    brought; and if torch's, why. Reads as a log phrase.

    ``build`` makes a host's kernel of k, v and the number of query heads; it raises ValueError
    with the reason where that does not fit.
    """

    kernels: str
    reason: str = ""
    build: Callable[[Tensor, Tensor, int], AttentionKernel] | None = field(
        default=None, compare=False
    )

    def __str__(self) -> str:
        return f"{self.kernels} ({self.reason})" if self.reason else self.kernels


TORCH = KernelChoice("torch")
TRITON = KernelChoice("triton")

#: By device type, the attention over working caches that a host brought for its own devices.
_ATTENTION: dict[str, KernelChoice] = {}


def bring_attention(
    device_type: str, name: str, build: Callable[[Tensor, Tensor, int], AttentionKernel]
) -> None:
    """On devices of this type, attend over working caches by the operation called ``name``."""
    _ATTENTION[device_type] = KernelChoice(name, build=build)


def attention_for(device: torch.device) -> KernelChoice:
    """What to try for attention over working caches: what a host brought, else as for the rest."""
    return _ATTENTION.get(device.type) or kernels_for(device)


def kernels_for(device: torch.device) -> KernelChoice:
    """What to try on ``device``: Triton on CUDA where it is installed, torch elsewhere."""
    if device.type != "cuda":
        return KernelChoice("torch", f"device {device.type}")
    if importlib.util.find_spec("triton") is None:
        return KernelChoice("torch", "triton is not installed")
    return TRITON


def try_kernel(
    wanted: KernelChoice, build: Callable[[], _Kernel]
) -> tuple[KernelChoice, _Kernel | None]:
    """Build a kernel's object if one is wanted; otherwise, or if that fails, say why torch works.

    Args:
        build: imports, allocates and runs the kernel once, so that whatever does not fit or does
            not compile shows now and not under a request. A ValueError says what does not fit.
    """
    if wanted.kernels == "torch":
        return wanted, None
    try:
        return wanted, build()
    except ValueError as error:
        return KernelChoice("torch", str(error)), None
    except Exception as error:
        name = wanted.kernels
        logger.warning(
            "DiffSpec: a kernel of %s does not run here, torch does", name, exc_info=True
        )
        return KernelChoice("torch", f"{type(error).__name__} from {name}"), None


def check_fit(dtype: torch.dtype, head_dim: int) -> None:
    """Whether our Triton kernels take these keys.

    Raises:
        ValueError: another type than float32, float16 or bfloat16, or a head dimension that is no
            power of two from 16 to 256.
    """
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"keys of type {str(dtype).removeprefix('torch.')}")
    if head_dim not in (16, 32, 64, 128, 256):
        raise ValueError(f"head dimension {head_dim}")


def rows_per_tile(dtype: torch.dtype, head_dim: int) -> int:
    """Rows of keys one program reads at once, a power of two: 32 KiB, at most 256 rows."""
    return min(256, (32 << 10) // (head_dim * dtype.itemsize))


def must_widen(interpreted: bool, *types: torch.dtype) -> bool:
    """Whether a kernel's products need float32 operands: their types differ, or Triton's
    interpreter runs, whose ``dot`` takes bfloat16 for integers (3.9). Sums are float32 anyway."""
    return len(set(types)) > 1 or (interpreted and torch.bfloat16 in types)
