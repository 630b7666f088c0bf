# SPDX-License-Identifier: Apache-2.0
"""The drafting cycle on several ranks: real processes joined by gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffspec.proposer.ranks import Collectives, OutOfStep
from tests.unit import tiny_draft as tiny
from tests.unit.ranked import RankedServing, fault_at_random, play, play_on_ranks
from tests.unit.serving import Shape

#: Calls that fail in what follows: before a collective call, between two of them, after one.
DRAFTING = ("masses", "output", "logits")
INGEST = ("combine", "qkv", "write", "batch")


def serve(serving: RankedServing) -> None:
    """Requests of all kinds, depths changing at every step, shadows and pauses."""
    for _ in range(60):
        serving.change_depths()
        serving.random_step(batch=6)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_draft_what_one_process_drafts(size: int, tmp_path: Path) -> None:
    """With four ranks each KV head of draft and target is held by two of them."""
    shape = Shape(budget=80, max_len=170, slots=4)
    alone = play(serve, shape)
    ranks = play_on_ranks(size, tmp_path, serve, shape)
    assert sum(map(len, alone.drafts[-1].values())) or any(any(s.values()) for s in alone.drafts)
    for seen in ranks:
        assert seen.drafts == alone.drafts
        assert not any(seen.off)


def one_by_one(serving: RankedServing) -> None:
    """Two requests, a token a step; drafting fails on one rank and then on the other."""
    requests = serving.prefilled(30, 40)
    for step in range(14):
        work = [(request, 0) for request in requests]
        if step in (3, 8):
            serving.step(*work, fault="output", on=[step == 3], after=step == 8)
        else:
            serving.step(*work)


def test_a_fault_in_drafting_costs_two_steps_on_all_ranks(tmp_path: Path) -> None:
    shape = Shape(budget=128)
    steady = play(one_by_one, shape)
    for seen in play_on_ranks(2, tmp_path, one_by_one, shape):
        for step, (ours, wanted) in enumerate(zip(seen.drafts, steady.drafts, strict=True)):
            if step in (5, 9, 10):  # in step 4 rank 0 drafted, with zeros from rank 1
                assert not any(ours.values()), step
            elif step != 4:
                assert ours == wanted, step
        assert all(seen.drafts[4].values())
        assert not any(seen.off)


def unlucky(serving: RankedServing) -> None:
    fault_at_random(serving, 400, DRAFTING + INGEST)


def test_faults_on_any_rank_leave_all_in_step(tmp_path: Path) -> None:
    """Same calls, holes, slots and waiting rows after every step, and drafting goes on."""
    seen, other = play_on_ranks(2, tmp_path, unlucky, Shape(budget=80, max_len=170, page=4))
    hit = {fault for fault in seen.broken + other.broken if fault}
    assert hit == {*DRAFTING, *INGEST}
    assert any(f and not g for f, g in zip(seen.broken, other.broken, strict=True))
    assert any(g and not f for f, g in zip(seen.broken, other.broken, strict=True))
    assert any(any(drafts.values()) for drafts in seen.drafts[-20:])
    assert not any(seen.off + other.off)


def hopeless(serving: RankedServing) -> None:
    """Rank 1 fails whenever it drafts."""
    (request,) = serving.prefilled(30)
    for _ in range(12):
        serving.step((request, 0), fault="output", on=[1])


def test_all_ranks_give_up_in_the_same_step(tmp_path: Path) -> None:
    seen, other = play_on_ranks(2, tmp_path, hopeless, Shape())
    # Faults in steps 1, 3 and 5; rank 1 gives up in the last one, and tells it in the next.
    assert seen.off == [step >= 6 for step in range(13)]
    assert other.off == [step >= 5 for step in range(13)]
    assert not any(any(drafts.values()) for drafts in seen.drafts[6:])


def reporting(serving: RankedServing) -> None:
    """Rank 0 is asked for its numbers while all rest."""
    (request,) = serving.prefilled(30)
    policy = serving.host.policy
    policy.by_slot[:], policy.rest_steps = 0, 4
    for _ in range(12):
        serving.step((request, 0))
        if serving.share.rank == 0:
            assert serving.host.cycle.numbers()["slots_used"] == 1
    counted = serving.host.cycle.counters.zero["no_gain"]
    assert serving.share.rank or counted + serving.host.cycle._resting._taken == 12


def test_numbers_of_one_rank_end_no_rest(tmp_path: Path) -> None:
    for seen in play_on_ranks(2, tmp_path, reporting, Shape(waiting=20)):
        assert not any(seen.off)


def resting(serving: RankedServing) -> None:
    """Steps that need no plan; one of them fails on rank 1 to put its row aside."""
    (request,) = serving.prefilled(30)
    policy = serving.host.policy
    policy.by_slot[:], policy.rest_steps = 0, 4
    for step in range(12):
        serving.step((request, 0), fault="put" if step == 6 else None, on=[1])


def test_rows_that_could_not_be_put_aside_end_drafting(tmp_path: Path) -> None:
    seen, other = play_on_ranks(2, tmp_path, resting, Shape(waiting=20))
    assert "put" in other.broken
    assert [s.off[-1] for s in (seen, other)] == [True, True]


class Echo:
    """Two ranks that hold the same."""

    rank, size = 0, 2

    def add(self, values: object) -> None:
        raise AssertionError

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, x))


def collectives(broken: str = "") -> Collectives:
    def trip(name: str) -> None:
        if name == broken:
            raise RuntimeError("broken for good")

    parts = tiny.TinyDraft(0).parts(trip)
    return Collectives(
        Echo(), parts, hidden=tiny.HIDDEN, dtype=torch.float32, device=torch.device("cpu")
    )


def test_what_is_missing_of_a_step_is_made_up_for() -> None:
    made = collectives()
    masses = torch.rand(2, 5)
    wanted = 2 * masses
    made.add_masses(masses)
    assert torch.equal(masses, wanted)
    calls = [("masses", 2, 5), ("output", 3), ("mlp", 3), ("logits", 3), ("embed", 2)]
    made.complete(calls)
    assert made.issued == calls
    made.begin()
    assert made.issued == []


def test_a_rank_that_cannot_keep_step_ends_its_process() -> None:
    made = collectives(broken="output")
    with pytest.raises(OutOfStep, match="broken for good"):
        made.complete([("embed", 2), ("output", 2)])
    assert made.issued == [("embed", 2)]
    with pytest.raises(OutOfStep, match="were due"):
        made.complete([("masses", 1, 4)])
    assert issubclass(OutOfStep, SystemExit)
