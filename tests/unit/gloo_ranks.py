# SPDX-License-Identifier: Apache-2.0
"""Ranks that are real processes joined by gloo, and what share of a model each of them holds."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from diffspec.proposer.batch import IntArray


class GlooRanks:
    """The processes of torch's default group."""

    rank = property(lambda self: dist.get_rank())
    size = property(lambda self: dist.get_world_size())

    def add(self, values: IntArray) -> None:
        dist.all_reduce(torch.from_numpy(values))

    def gather(self, x: Tensor) -> Tensor:
        out = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(out, x.contiguous())
        return out


class Share:
    """What one rank holds; everything without ``ranks``."""

    def __init__(self, ranks: Any = None) -> None:
        self.ranks = ranks
        self.rank, self.size = (ranks.rank, ranks.size) if ranks else (0, 1)

    def count(self, heads: int) -> int:
        """Heads on this rank: one at least, which several ranks hold where there are too few."""
        return max(1, heads // self.size)

    def heads(self, heads: int) -> slice:
        """Which of ``heads`` heads these are."""
        first = self.rank * heads // self.size
        return slice(first, first + self.count(heads))

    def rows(self, weight: Tensor) -> tuple[int, Tensor]:
        """This rank's rows of a weight whose rows the ranks divide, and the first one's number."""
        each = -(-weight.shape[0] // self.size)
        return self.rank * each, weight[self.rank * each : (self.rank + 1) * each].contiguous()

    def summed(self, x: Tensor) -> Tensor:
        """The sum over ranks."""
        if self.ranks is not None:
            dist.all_reduce(x)
        return x

    def joined(self, x: Tensor) -> Tensor:
        """The columns of all ranks."""
        if self.ranks is None:
            return x
        return self.ranks.gather(x).view(self.size, *x.shape).transpose(0, 1).flatten(1)


WHOLE = Share()
