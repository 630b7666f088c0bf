# SPDX-License-Identifier: Apache-2.0
"""vLLM's tensor-parallel group as the :class:`~diffspec.proposer.ranks.Ranks` of a cycle."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diffspec.proposer.batch import IntArray
from diffspec.proposer.ranks import Ranks


class TensorParallelRanks:
    """Tensors of a device go the way of vLLM's own layers, numbers on the host over its group of
    CPU processes, which waits for no device.

    Args:
        group: vLLM's ``GroupCoordinator``.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return int(self._group.rank_in_group)

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return int(self._group.world_size)

    def add(self, values: IntArray) -> None:
        """See :meth:`Ranks.add`."""
        torch.distributed.all_reduce(torch.from_numpy(values), group=self._group.cpu_group)

    def gather(self, x: Tensor) -> Tensor:
        """See :meth:`Ranks.gather`."""
        gathered: Tensor = self._group.all_gather(x, dim=0)
        return gathered


def tensor_parallel_ranks() -> Ranks | None:
    """The ranks this process belongs to; None if it is alone."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    return TensorParallelRanks(group) if group.world_size > 1 else None
