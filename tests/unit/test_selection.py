# SPDX-License-Identifier: Apache-2.0
"""Chunk selection: invariants, and the picks against a naive implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffspec.retrieval.selection import SelectionPlan, select_chunks
from tests.unit import naive

pytestmark = pytest.mark.usefixtures("one_thread")

PLANS = st.builds(
    SelectionPlan,
    sink=st.integers(1, 2),
    window=st.integers(1, 6),
    picks=st.integers(1, 12),
    successors=st.integers(0, 4),
)


@st.composite
def cases(draw: Any) -> tuple[SelectionPlan, list[int], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Plan, chunks per request, distinct masses, present, blocked."""
    plan = draw(PLANS)
    chunks = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    count = max(chunks)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    masses = torch.rand((len(chunks), count), generator=generator) ** 8
    for row, own in enumerate(chunks):
        masses[row, own:] = 0
    masses /= masses.sum(-1, keepdim=True)
    share = draw(st.sampled_from([0.0, 0.2, 0.9]))
    blocked = torch.rand(masses.shape, generator=generator) < share
    present = torch.rand(masses.shape, generator=generator) < draw(st.sampled_from([0.0, 0.5]))
    return plan, chunks, masses, present, blocked


@settings(max_examples=200, deadline=None)
@given(cases())
def test_against_naive_and_invariants(case: Any) -> None:
    plan, chunks, masses, present, blocked = case
    count = masses.shape[1]
    chosen = select_chunks(masses, torch.tensor(chunks), plan, present=present, blocked=blocked)
    assert chosen.shape == (len(chunks), plan.total)
    assert chosen.dtype == torch.int64
    for row, own in enumerate(chunks):
        picked = [c for c in chosen[row].tolist() if c < count]
        assert chosen[row].tolist() == picked + [count] * (plan.total - len(picked))
        assert picked == sorted(set(picked))
        no = set(blocked[row].nonzero().flatten().tolist())
        assert not no & set(picked)
        assert all(c < own for c in picked)
        always = {*range(min(plan.sink, own)), *range(max(0, own - plan.window), own)}
        assert always - no <= set(picked)
        if own <= plan.total:
            assert set(picked) == set(range(own)) - no
        assert len(picked) == min(plan.total, own) or no
        yes = set(present[row].nonzero().flatten().tolist())
        assert picked == naive.select(masses[row].tolist(), own, plan, yes, no)


@pytest.mark.parametrize("successors", [0, 1, 3])
def test_the_heaviest_pick_comes_with_its_successors(successors: int) -> None:
    plan = SelectionPlan(sink=1, window=4, picks=8, successors=successors)
    masses = torch.full((1, 50), 1e-3) + torch.arange(50) * 1e-6
    masses[0, 20] = 0.9
    chosen = set(select_chunks(masses, torch.tensor([50]), plan)[0].tolist())
    assert {0, 46, 47, 48, 49} <= chosen
    assert set(range(20, 21 + successors)) <= chosen
    # The heavier ones of the rest are those with the higher numbers.
    rest = plan.picks - (successors + 1) * plan.heavy
    assert sorted(chosen)[-4 - rest : -4] == list(range(46 - rest, 46))


@pytest.mark.parametrize(("factor", "stays"), [(1.09, True), (1.11, False)])
def test_a_present_chunk_gives_way_only_to_a_clearly_heavier_one(
    factor: float, stays: bool
) -> None:
    plan = SelectionPlan(sink=1, window=1, picks=1, successors=0)
    masses = torch.tensor([[0.1, 0.05, 0.2, 0.01, 0.2 * factor, 0.1]])
    present = torch.tensor([[True, False, True, False, False, True]])
    chosen = select_chunks(masses, torch.tensor([6]), plan, present=present)
    assert chosen.tolist() == [[0, 2, 5] if stays else [0, 4, 5]]


def test_requests_do_not_see_each_other() -> None:
    plan = SelectionPlan(sink=1, window=2, picks=3, successors=1)
    masses = torch.rand((3, 40), generator=torch.Generator().manual_seed(1))
    chunks = torch.tensor([40, 11, 25])
    for row, own in enumerate(chunks.tolist()):
        masses[row, own:] = 0
    together = select_chunks(masses, chunks, plan)
    for row in range(3):
        alone = select_chunks(masses[row : row + 1], chunks[row : row + 1], plan)
        assert torch.equal(together[row : row + 1], alone)
