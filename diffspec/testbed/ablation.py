# SPDX-License-Identifier: Apache-2.0
"""DiffSpec without retrieval, for comparison: the newest chunks instead of the heaviest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from diffspec.proposer.working_set import MassFunction, WorkingSet


@contextmanager
def newest_chunks(working_set: WorkingSet) -> Iterator[None]:
    """Pick the newest chunks as long as the block runs: a sink and a sliding window of the same
    budget."""
    by_mass = working_set.masses
    working_set.masses = _newest_first(working_set.geometry.chunk)
    try:
        yield
    finally:
        working_set.masses = by_mass


def _newest_first(chunk: int) -> MassFunction:
    """Masses that rise with the chunk number, for chunks of ``chunk`` tokens."""

    def masses(query: Tensor, table: Tensor, lengths: Tensor, longest: int) -> Tensor:
        count = -(-longest // chunk)
        rising = torch.arange(1, count + 1, dtype=torch.float32, device=lengths.device)
        return rising.expand(len(lengths), -1) / count

    return masses
