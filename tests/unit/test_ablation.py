# SPDX-License-Identifier: Apache-2.0
"""DiffSpec without retrieval."""

from __future__ import annotations

import pytest
import torch

from diffspec.retrieval.selection import select_chunks
from diffspec.testbed.ablation import newest_chunks
from tests.unit.serving import Host, Shape


def test_the_newest_chunks_are_picked() -> None:
    working_set = Host(Shape()).working_set
    plan, lengths, none = working_set.plan, torch.tensor([150, 120]), torch.zeros(0)
    chunks = -(-lengths // working_set.geometry.chunk)
    with newest_chunks(working_set):
        masses = working_set.masses(none, none, lengths, 150)
    for row, count in zip(select_chunks(masses, chunks, plan), chunks.tolist(), strict=True):
        assert row.tolist() == [0, *range(count - plan.total + 1, count)]


def test_whatever_happens_the_heaviest_are_picked_again() -> None:
    working_set = Host(Shape()).working_set
    by_mass = working_set.masses
    with pytest.raises(KeyboardInterrupt), newest_chunks(working_set):
        raise KeyboardInterrupt
    assert working_set.masses == by_mass
