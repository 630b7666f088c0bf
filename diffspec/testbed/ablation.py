# SPDX-License-Identifier: Apache-2.0
"""DiffSpec without retrieval, for comparison: the newest chunks instead of the heaviest."""

from __future__ import annotations

import torch
from torch import Tensor

from diffspec.proposer.working_set import MassFunction


def newest_first(chunk: int) -> MassFunction:
    """Masses that make selection pick the newest chunks of ``chunk`` tokens, which leaves a sink
    and a sliding window of the same budget. Put it in place of ``working_set.masses``."""

    def masses(query: Tensor, table: Tensor, lengths: Tensor, longest: int) -> Tensor:
        count = -(-longest // chunk)
        rising = torch.arange(1, count + 1, dtype=torch.float32, device=lengths.device)
        return rising.expand(len(lengths), -1) / count

    return masses
