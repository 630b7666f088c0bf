# SPDX-License-Identifier: Apache-2.0
"""Which kernels do a hot operation on a device: plain torch, or our own in Triton.

The choice falls once, while buffers are allocated, and carries its reason for the log. Triton is
imported only where it was chosen.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

logger = logging.getLogger("vllm.diffspec")

_Kernel = TypeVar("_Kernel")


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Whose kernels, and why not Triton's (empty for those). Reads as a log phrase."""

    kernels: Literal["torch", "triton"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kernels} ({self.reason})" if self.reason else self.kernels


TORCH = KernelChoice("torch")
TRITON = KernelChoice("triton")


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
    """Build a Triton kernel's object if wanted; otherwise, or if that fails, say why torch works.

    Args:
        build: imports, allocates and runs the kernel once, so that whatever does not fit or does
            not compile shows now and not under a request. A ValueError says what does not fit.
    """
    if wanted.kernels == "torch":
        return wanted, None
    try:
        return TRITON, build()
    except ValueError as error:
        return KernelChoice("torch", str(error)), None
    except Exception as error:
        logger.warning("DiffSpec: a Triton kernel does not run here, torch does", exc_info=True)
        return KernelChoice("torch", f"{type(error).__name__} from triton"), None


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
