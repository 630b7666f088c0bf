# SPDX-License-Identifier: Apache-2.0
"""The depth policy in simulation, against somebody who knows everything."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase as HypothesisPhase
from hypothesis import given, settings
from hypothesis import strategies as st

from diffspec.adaptive_depth.adaptive import GLANCE, LOOK_AGAIN, AdaptiveDepth
from diffspec.adaptive_depth.cost import CostModel
from diffspec.adaptive_depth.limits import DepthLimits
from diffspec.adaptive_depth.policy import FixedDepth, IntArray, Plan, StepTimes
from diffspec.adaptive_depth.shadow import WINDOW
from diffspec.testbed.simulator import (
    MACHINES,
    Blind,
    Confidence,
    Machine,
    Phase,
    Trace,
    simulate,
)

CPU, MEMORY_BOUND, WEIGHT_BOUND = MACHINES
STEPS = 1000


def run(
    machine: Machine,
    *phases: Phase,
    depth: int = 5,
    length: int = 16384,
    seed: int = 0,
    limits: DepthLimits | None = None,
    confidence: Confidence | None = None,
    blind: bool = False,
) -> Trace:
    kind = Blind if blind else AdaptiveDepth
    policy = kind(len(phases[0].first), limits or DepthLimits(depth))
    return simulate(
        policy, machine, phases, depth=depth, length=length, seed=seed, confidence=confidence
    )


def share(trace: Trace) -> float:
    """Largest share of time that shadow drafts took over any window."""
    took, shadow = np.array(trace.took), np.array(trace.shadow)
    ones = np.ones(min(WINDOW, len(took)))
    total, secret = (np.convolve(a, ones, "valid") for a in (took, shadow))
    return float((secret / total).max())


WORKLOADS = st.fixed_dictionaries(
    {
        "machine": st.sampled_from(MACHINES),
        "depth": st.sampled_from([3, 5, 7]),
        "length": st.sampled_from([2048, 8192, 32768, 98304]),
        "requests": st.sampled_from([1, 4]),
        "decay": st.sampled_from([1.0, 0.9]),
        "first": st.lists(
            st.lists(st.floats(0.0, 0.98), min_size=4, max_size=4), min_size=1, max_size=2
        ),
        "seed": st.integers(0, 1000),
    }
)


def serve(workload: dict[str, Any]) -> Trace:
    requests, decay = workload["requests"], workload["decay"]
    phases = [Phase(STEPS, rates[:requests], decay) for rates in workload["first"]]
    names = ("depth", "length", "seed")
    return run(workload["machine"], *phases, **{name: workload[name] for name in names})


# Shrinking a workload takes longer than reading it.
@settings(max_examples=10, deadline=None, derandomize=True, phases=[HypothesisPhase.generate])
@given(WORKLOADS)
def test_no_workload_is_far_from_the_clairvoyant(workload: dict[str, Any]) -> None:
    trace = serve(workload)
    assert trace.efficiency() >= 0.93
    assert share(trace) <= 0.02


def test_workloads_are_within_five_per_cent_of_the_clairvoyant() -> None:
    rng = np.random.default_rng(7)
    found = []
    for seed in range(15):
        workload = {
            "machine": MACHINES[seed % 3],
            "depth": int(rng.choice([3, 5, 7])),
            "length": int(rng.choice([2048, 8192, 32768, 98304])),
            "requests": int(rng.choice([1, 4])),
            "decay": float(rng.choice([1.0, 0.9])),
            "first": rng.uniform(0, 0.98, (2, 4)).tolist(),
            "seed": seed,
        }
        found.append(serve(workload).efficiency())
    assert np.mean(found) >= 0.975
    assert np.mean(np.array(found) >= 0.95) >= 0.9


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("first", [0.0, 0.3, 0.6, 0.9])
def test_no_oscillation(machine: Machine, first: float) -> None:
    trace = run(machine, Phase(STEPS, [first]))
    # A look at a step without drafts, now and then, is a stop and a start.
    looks = 2 * (STEPS // 256 + 6)
    assert trace.switches() <= looks + 8


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_a_draft_that_is_always_wrong_costs_next_to_nothing(machine: Machine) -> None:
    trace = run(machine, Phase(STEPS, [0.0] * 4))
    assert trace.efficiency(64) >= 0.985
    assert not any(depths.any() for depths in trace.depths[64:])


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("seed", range(5))
def test_a_draft_that_turns_bad_and_good_again(machine: Machine, seed: int) -> None:
    phases = Phase(400, [0.98]), Phase(400, [0.0]), Phase(400, [0.98])
    trace = run(machine, *phases, seed=seed)
    on = [bool(depths.any()) for depths in trace.depths]
    assert not any(on[430:795]), "it stops"
    assert any(on[800:864]), "and goes on within 64 tokens, one per step"
    assert trace.efficiency() >= 0.95


@pytest.mark.parametrize("requests", [4, 16])
def test_many_drafts_that_turn_bad_and_good_again(requests: int) -> None:
    """Those that pause share their secret steps; nobody waits for its turn."""
    rates = ([rate] * requests for rate in (0.98, 0.0, 0.98))
    trace = run(MEMORY_BOUND, *(Phase(400, first) for first in rates))
    on = [bool(depths.any()) for depths in trace.depths]
    assert not any(on[440:795])
    assert any(on[800:864])
    assert share(trace) <= 0.02


LOADS = {
    "a load that ends as the draft turns wrong": (
        0.98, (Phase(20, [0.6], load=3.0), Phase(1000, [0.0]))
    ),
    "a load that begins as the draft turns wrong": (
        0.98, (Phase(20, [0.6]), Phase(1000, [0.0], load=3.0))
    ),
    "a load that ends as the draft turns right": (
        0.95, (Phase(20, [0.1], load=3.0), Phase(1000, [0.95]))
    ),
    "loads that come and go": (
        0.95, tuple(Phase(60, [0.5], load=load) for load in (1, 2, 1, 3, 1, 2, 1, 1.5) * 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("case", LOADS)
def test_a_machine_whose_pace_changes(machine: Machine, case: str) -> None:
    """What was seen last under a load must not be compared with what was seen without."""
    least, phases = LOADS[case]
    found = [run(machine, *phases, seed=seed).efficiency(32) for seed in range(4)]
    assert np.mean(found) >= least
    assert min(found) >= 0.9


def test_requests_that_differ_get_different_depths() -> None:
    trace = run(WEIGHT_BOUND, Phase(600, [0.95, 0.1, 0.6, 0.0]))
    good, bad, middling, wrong = np.mean(trace.depths[100:], axis=0)
    assert good >= middling > 4
    assert 1.5 > bad >= wrong
    # One row more is nearly free here, so that even a draft at 0.1 may as well be tried.
    assert trace.efficiency() >= 0.98
    trace = run(WEIGHT_BOUND, Phase(600, [0.95, 0.02, 0.6, 0.0]))
    _, bad, _, wrong = np.mean(trace.depths[100:], axis=0)
    assert 1 > bad >= wrong


def test_long_contexts_start_cautiously() -> None:
    limits = DepthLimits(5, long_context=50_000, long_depth=2)
    policy = AdaptiveDepth(2, limits)
    slots, room = np.array([0, 1]), np.array([5, 5])
    assert policy.plan(slots, np.array([60_000, 40_000]), room).depths.tolist() == [2, 5]
    trace = run(WEIGHT_BOUND, Phase(300, [0.95]), length=60_000, limits=limits)
    assert max(depths[0] for depths in trace.depths[:2]) == 2
    assert np.mean(trace.depths[50:]) > 4, "evidence ends the caution"


def test_a_target_that_must_always_draft() -> None:
    trace = run(CPU, Phase(300, [0.0, 0.3]), limits=DepthLimits(5, least=1))
    assert all((depths >= 1).all() for depths in trace.depths)


def test_a_host_with_graphs_for_two_depths() -> None:
    limits = DepthLimits(5, allowed=(0, 5))
    trace = run(MEMORY_BOUND, Phase(400, [0.7]), Phase(400, [0.0]), limits=limits)
    assert {int(depths[0]) for depths in trace.depths} == {0, 5}
    assert not any(depths.any() for depths in trace.depths[460:])


def test_long_contexts_with_graphs_start_at_a_depth_that_caution_admits() -> None:
    def first(allowed: tuple[int, ...], *lengths: int, least: int = 0) -> list[int]:
        limits = DepthLimits(5, least, allowed, long_context=50_000, long_depth=2)
        slots = np.arange(len(lengths))
        policy = AdaptiveDepth(len(lengths), limits)
        return policy.plan(slots, np.array(lengths), np.full_like(slots, 5)).depths.tolist()

    assert first((0, 5), 40_000) == [5]
    assert first((0, 5), 60_000) == [0]
    assert first((0, 1, 2, 5), 60_000) == [2]
    assert first((0, 5), 60_000, 40_000) == [5, 5], "the others' depth is the step's"
    assert first((5,), 60_000, least=1) == [5], "there is no other"
    limits = DepthLimits(5, allowed=(0, 5), long_context=50_000)
    trace = run(WEIGHT_BOUND, Phase(300, [0.95]), length=60_000, limits=limits)
    assert not any(depths.any() for depths in trace.depths[:4])
    assert np.mean(trace.depths[50:]) > 4.5, "secret drafts end the caution"


def test_no_step_is_planned_for_which_there_is_no_graph() -> None:
    policy = AdaptiveDepth(2, DepthLimits(5, allowed=(0, 3, 5)))
    slots, lengths = np.array([0, 1]), np.array([100, 100])
    for room, depth in ((5, 5), (4, 3), (2, 0), (0, 0)):
        plan = policy.plan(slots, lengths, np.array([5, room]))
        assert plan.depths.tolist() == [depth, depth]
    policy = AdaptiveDepth(2, DepthLimits(5, least=1, allowed=(5,)))
    assert policy.plan(slots, lengths, np.array([5, 2])).depths.tolist() == [5, 2]


@pytest.mark.parametrize("good", [0, 1])
def test_requests_that_did_otherwise_alone_are_one_batch_where_there_are_graphs(good: int) -> None:
    policy = AdaptiveDepth(2, DepthLimits(5, allowed=(0, 5)))
    slots, lengths, room = np.arange(2), np.full(2, 2048), np.full(2, 5)

    right = np.where(slots == good, 5, 0)

    def step(at: IntArray, drafted: IntArray) -> IntArray:
        if drafted.any():
            some = drafted > 0
            accepted = np.minimum(right[at], drafted)[some]
            policy.observe(at[some], drafted[some], accepted, np.full(some.sum(), -1))
        depths = policy.plan(at, lengths[at], room[at]).depths
        b, rows, deepest = len(at), len(at) + int(depths.sum()), int(depths.max())
        verify, propose = 0.01 + 0.0005 * rows, 0.0002 + 0.001 * deepest
        policy.timed(
            StepTimes(b, rows, 2048 * b, True, verify, propose, 0.0, 0.0, deepest, False, 0)
        )
        return depths

    # One after the other, the good draft is used and the wrong one is not; then both come together.
    for slot in (good, 1 - good):
        alone, drafted = slots[slot : slot + 1], np.zeros(1, dtype=np.int64)
        for _ in range(80):
            drafted = step(alone, drafted)
        assert drafted == right[slot]
    drafted = np.zeros(2, dtype=np.int64)
    for _ in range(40):
        drafted = step(slots, drafted)
        assert drafted[0] == drafted[1]
    assert drafted.any()


def test_where_nothing_may_be_drafted_nothing_is_found_out() -> None:
    policy = AdaptiveDepth(1, DepthLimits(5, allowed=(0,)))
    slots, room, planned = np.arange(1), np.full(1, 5), 0
    times = StepTimes(1, 1, 2048, True, 0.01, 0.0001, 0.0, 0.0005, 0, False, 0)
    steps = 0
    while steps < 600:
        plan = policy.plan(slots, np.full(1, 2048 + steps), room)
        assert not plan.depths.any()
        assert not plan.shadows.any()
        policy.timed(times)
        policy.rested(slots, plan.rest, 0.0106, 0.0001)
        steps += 1 + plan.rest
        planned += 1
    assert planned <= 20


def test_near_the_end_of_a_context_there_is_less_room() -> None:
    policy = AdaptiveDepth(2, DepthLimits(5))
    plan = policy.plan(np.array([0, 1]), np.array([100, 100]), np.array([0, 2]))
    assert plan.depths.tolist() == [0, 2]


def test_break_even_acceptance() -> None:
    policy = AdaptiveDepth(1, DepthLimits(5))
    assert np.isnan(policy.break_even(1, 16384))
    simulate(policy, CPU, [Phase(600, [0.7])], depth=5, length=16384)
    found = policy.break_even(1, 20_000)
    # Two rows cost as much as six here, twice as much as one: about one more token is needed.
    assert 0.4 < found < 0.65


def served(policy: AdaptiveDepth, rows: int, depth: int, verify: float, propose: float) -> None:
    """Four steps of one request of 1000 tokens, as they were timed."""
    for _ in range(4):
        policy.timed(
            StepTimes(1, rows, 1000, True, verify, propose, propose / 2, 0.001, depth, False, 0)
        )


@pytest.mark.parametrize("allowed", [None, (0, 5)])
def test_break_even_is_not_told_from_guesses(allowed: tuple[int, ...] | None) -> None:
    policy = AdaptiveDepth(1, DepthLimits(5, allowed=allowed))
    for rows in range(1, 9):
        policy.seed(rows, 0.010 + 0.001 * rows)
    assert np.isnan(policy.break_even(1, 1000)), "the sweep alone"
    served(policy, 1, 0, 0.019, 0.0)
    assert np.isnan(policy.break_even(1, 1000)), "no step with drafts"
    served(policy, 2, 1, 0.021, 0.002)
    served(policy, 6, 5, 0.035, 0.004)
    found = policy.break_even(1, 1000)
    # 20 ms without drafts, 24 ms for one token (the entries' few samples are hoped to be a little
    # less), 40 ms for five: 1 + a = 24 / 20, or 1 + a + … + a⁵ = 40 / 20.
    (root,) = (r.real for r in np.roots([1, 1, 1, 1, 1, -1]) if abs(r.imag) < 1e-9)
    assert found == pytest.approx(0.2 if allowed is None else root, abs=0.05)
    assert np.isnan(policy.break_even(1, 30_000)), "far from here"
    assert np.isnan(policy.break_even(2, 1000)), "of two requests"
    policy.cost.age()
    assert policy.break_even(1, 1000) <= found, "doubted, in favour of drafting"


def test_break_even_needs_a_step_without_drafts() -> None:
    policy = AdaptiveDepth(1, DepthLimits(5))
    served(policy, 4, 3, 0.02, 0.002)
    assert np.isnan(policy.break_even(1, 1000))


def paused_after(drafting: int, *, steps: int, verify: float) -> list[int]:
    """After so many steps with drafts that were right, and then wrong ones: in which steps of the
    pause something is drafted, ``verify`` seconds being what verification takes then."""
    policy, slots, room = AdaptiveDepth(1, DepthLimits(1)), np.array([0]), np.array([1])
    tried, since, depths = [], -1, np.array([0])
    for step in range(drafting + steps):
        right = int(step < drafting)
        if depths[0]:
            policy.observe(slots, depths, depths * right, np.array([-1]))
        drafted = int(depths[0])
        plan = policy.plan(slots, np.array([1000]), room)
        depths = plan.depths
        if step >= drafting and not plan.measuring:
            if since < 0 and not depths[0]:
                since = step
            elif since >= 0 and depths[0]:
                tried.append(step - since)
        took = 0.010 if not drafted else 0.012 if step < drafting else verify
        policy.timed(
            StepTimes(
                1, 1 + drafted, 1000, True, took, 0.0005, 0.0004, 0.0, int(depths[0]), False, 0
            )
        )
    return tried


def test_a_pause_lasts_before_drafting_is_tried_again() -> None:
    """However long ago the last try was when it began."""
    tried = paused_after(700, steps=600, verify=0.0105)
    assert tried
    assert tried[0] >= LOOK_AGAIN


@pytest.mark.parametrize("seed", range(3))
def test_drafting_that_nearly_pays_is_tried_again_and_again(seed: int) -> None:
    """Every second token is right, which pays from step 3000 on, when verification gets faster.
    What a step without drafts costs is known, and no reason to look at that instead."""
    policy, slots = AdaptiveDepth(1, DepthLimits(1)), np.array([0])
    rng = np.random.default_rng(seed)
    depths, secret, tried, looked = np.array([0]), np.array([0]), [], 0
    for step in range(3600):
        right = int(rng.random() < 0.5)
        if depths[0]:
            policy.observe(slots, depths, depths * right, np.array([-1]))
        if secret[0]:
            policy.observe_shadows(slots, secret, secret * right)
        drafted = int(depths[0])
        took = 0.010 if not drafted else 0.0155 if step < 3000 else 0.011
        plan = policy.plan(slots, np.array([1000]), np.array([1]))
        depths, secret = plan.depths, plan.shadows
        tried += [step] * int(depths[0])
        looked += plan.measuring and 400 < step < 3000
        propose = 0.0005 if depths[0] or secret[0] else 0.0001
        policy.timed(
            StepTimes(
                *(1, 1 + drafted, 1000, True, took, propose, 0.0004, 0.0),
                *(int(depths[0]), False, int(secret[0])),
            )
        )
    before = [step for step in tried if 200 < step < 3000]
    assert max(later - step for step, later in pairwise(before)) <= 1.5 * LOOK_AGAIN
    assert len(before) <= 0.04 * 2800
    assert not looked
    assert sum(step >= 3000 for step in tried) >= 600 - 1.5 * LOOK_AGAIN


def test_costs_are_doubted_only_after_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    aged = []
    monkeypatch.setattr(CostModel, "age", lambda self: aged.append(self))
    policy = AdaptiveDepth(1, DepthLimits(5))
    simulate(policy, CPU, [Phase(1200, [0.98]), Phase(1000, [0.0])], depth=5, length=16384)
    assert not aged
    simulate(policy, CPU, [Phase(600, [0.0])], depth=5, length=16384)
    assert aged


def test_a_draft_that_is_always_right_is_tried_deeper_soon() -> None:
    """The first looks at the deepest chains met something else that kept the machine busy."""
    policy, looks, chosen = AdaptiveDepth(1, DepthLimits(7)), 0, []
    slots, depths = np.array([0]), np.array([0])
    for step in range(200):
        if depths[0]:
            policy.observe(slots, depths, depths, np.array([-1]))
        drafted = int(depths[0])
        took = 0.010 + 0.0002 * drafted
        if drafted == 7 and (looks := looks + 1) <= 4:
            took *= 2
        propose = 0.0005 + 0.0004 * drafted
        policy.timed(
            StepTimes(
                *(1, 1 + drafted, 2048, True, took, propose, 0.0004 * drafted, 0.0),
                *(drafted, False, 0),
            )
        )
        depths = policy.plan(slots, np.array([2048]), np.array([6 + (step > 40)])).depths
        if (gate := policy.gate(slots, depths)) is not None and depths[0]:
            gate.cut(depths, np.full((1, int(depths[0])), -1e-5))
        chosen.append(int(depths[0]))
    assert looks > 4
    assert max(chosen[60:90]) == 6, "it was taken to be dear"
    assert min(chosen[-30:]) == 7


@pytest.mark.parametrize(("gain", "depth"), [(1.004, 1), (1.04, 2)])
def test_who_comes_starts_and_the_others_go_on(gain: float, depth: int) -> None:
    """Another request in the batch is no reason to change depths for next to nothing."""
    policy, lengths = AdaptiveDepth(3, DepthLimits(2)), np.full(3, 1000)
    for step in range(400):  # half of all tokens are right
        accepted = np.full(3, (0, 1, 0, 2)[step % 4])
        policy.observe(np.arange(3), np.full(3, 2), accepted, np.full(3, -1))
    for rows, seconds in ((3, 0.020), (6, 0.024), (9, 0.024 * (1.75 / 1.5) / gain)) * 60:
        chosen = rows // 3 - 1
        policy.timed(StepTimes(3, rows, 3000, True, seconds, 0.0, 0.0, 0.0, chosen, False, 0))
    alone = policy.plan(np.arange(2), lengths[:2], np.ones(2, dtype=np.int64))
    assert alone.depths.tolist() == [1, 1], "there is no room for more"
    joined = policy.plan(np.arange(3), lengths, np.full(3, 2))
    assert joined.depths.tolist() == [depth, depth, 2]


@pytest.mark.parametrize(("gain", "depth"), [(1.02, 0), (1.05, 1)])
def test_who_comes_does_not_end_a_pause_for_next_to_nothing(gain: float, depth: int) -> None:
    policy, one, two = AdaptiveDepth(2, DepthLimits(1)), np.array([0]), np.array([0, 1])
    for step in range(200):
        policy.observe(one, np.array([1]), np.array([step % 2]), np.array([-1]))
    for rows, seconds in ((1, 0.02), (2, 0.02 * 1.5 / gain)) * 60:
        policy.timed(StepTimes(1, rows, 1000, True, seconds, 0.0, 0.0, 0.0, rows - 1, False, 0))
    policy.plan(one, np.array([1000]), np.array([0]))  # no room: it pauses
    plan = policy.plan(two, np.array([1000, 1000]), np.array([1, 1]))
    assert plan.depths.tolist() == [depth, depth]


def test_a_request_that_paused_keeps_what_it_has_shown() -> None:
    policy = AdaptiveDepth(2, DepthLimits(5))
    slots = np.array([0, 1])
    for _ in range(20):
        policy.observe(slots, np.array([5, 5]), np.array([5, 0]), np.array([-1, -1]))
    before = policy.acceptance.rates(slots[:1])
    policy.plan(slots[1:], np.array([100]), np.array([5]))  # the first one is preempted
    assert (policy.acceptance.rates(slots[:1]) == before).all()
    policy.forget(0)
    assert policy.acceptance.rates(slots[:1])[0, 0] < before[0, 0]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_where_drafting_evidently_pays_no_step_is_spent_on_asking(machine: Machine) -> None:
    right, doubtful = (
        run(machine, Phase(40, [rate]), length=2048, depth=7) for rate in (0.99, 0.4)
    )
    zero = [sum(not depths.any() for depths in trace.planned) for trace in (right, doubtful)]
    assert zero[0] == 0
    assert zero[1] >= 3


# -- with a draft that says how sure it is --


def test_confidences_are_read_now_and_then_where_they_change_nothing() -> None:
    policy, slots, room = AdaptiveDepth(1, DepthLimits(3)), np.array([0]), np.array([3])

    def step(accepted: int) -> bool:
        """Whether this step's confidences are read."""
        depths = policy.plan(slots, np.array([100]), room).depths
        assert depths.tolist() == [3]
        if (gate := policy.gate(slots, depths)) is not None:
            assert gate.cut(depths, np.full((1, 3), -0.1)).tolist() == [3]
        policy.observe(slots, depths, np.array([accepted]), np.array([-1]))
        policy.timed(StepTimes(1, 4, 100, True, 0.01, 0.002, 0.001, 0.001, 3, False, 0))
        return gate is not None

    first = [step(3) for _ in range(40)]
    assert first[0], "nothing is known yet"
    assert sum(first[-2 * GLANCE :]) == 2
    step(0)
    assert step(3), "one was wrong"


def over_blind(workload: dict[str, Any], confidence: Confidence) -> tuple[float, Trace]:
    """Speed over that of the same policy without confidences, and what happened with them."""
    requests = workload["requests"]
    phases = [Phase(STEPS // 2, rates[:requests], workload["decay"]) for rates in workload["first"]]
    names = ("depth", "length", "seed")
    given = {name: workload[name] for name in names}
    seen, unseen = (
        run(workload["machine"], *phases, **given, confidence=confidence, blind=blind)
        for blind in (False, True)
    )
    return seen.speed() / unseen.speed(), seen


ANY_DRAFT = st.builds(
    Confidence,
    spread=st.sampled_from([0.05, 0.3, 0.6]),
    truth=st.sampled_from([-1.0, 0.0, 0.5, 1.0]),
    bias=st.sampled_from([0.0, 3.0]),
    noise=st.sampled_from([0.3, 1.5]),
)


@settings(max_examples=6, deadline=None, derandomize=True, phases=[HypothesisPhase.generate])
@given(WORKLOADS, ANY_DRAFT)
def test_no_draft_however_it_lies_makes_the_policy_much_slower(
    workload: dict[str, Any], confidence: Confidence
) -> None:
    ratio, trace = over_blind(workload, confidence)
    assert ratio >= 0.95
    assert share(trace) <= 0.02


SURE, SAYS_NOTHING = Confidence(0.5), Confidence(0.5, truth=0.0, noise=1.5)
TOO_SURE, CONTRARY = Confidence(0.5, bias=3.0), Confidence(0.5, truth=-1.0)


@pytest.mark.parametrize(
    ("confidence", "least"),
    [(SURE, 1.02), (TOO_SURE, 1.01), (CONTRARY, 1.01), (SAYS_NOTHING, 0.99)],
)
def test_confidence_is_used_as_far_as_it_tells(confidence: Confidence, least: float) -> None:
    """On two cores, where verifying anything at all is dear."""
    ratios = [
        run(CPU, Phase(600, [first]), seed=seed, confidence=confidence).speed(100)
        / run(CPU, Phase(600, [first]), seed=seed, confidence=confidence, blind=True).speed(100)
        for seed, first in enumerate([0.5, 0.65, 0.8])
    ]
    assert np.mean(ratios) >= least, ratios


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("first", [0.0, 0.3, 0.6, 0.9])
def test_no_oscillation_with_confidences(machine: Machine, first: float) -> None:
    trace = run(machine, Phase(STEPS, [first]), confidence=SURE)
    assert trace.switches() <= 2 * (STEPS // 256 + 6) + 8


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_a_draft_that_is_sure_and_always_wrong_stops(machine: Machine) -> None:
    sure = Confidence(0.01, bias=8.0)
    trace = run(machine, Phase(200, [0.95]), Phase(400, [0.0]), confidence=sure)
    # Now and then it is tried for a few steps, as what a verification costs may have changed.
    assert sum(bool(depths.any()) for depths in trace.planned[230:]) <= 8
    assert share(trace) <= 0.02


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_what_is_always_cut_is_soon_not_drafted(machine: Machine) -> None:
    """Nothing is submitted for long, and drafting rests as if the draft were wrong."""
    trace = run(machine, Phase(200, [0.8]), Phase(500, [0.02]), confidence=SURE)
    wasted = [p.any() and not d.any() for p, d in zip(trace.planned, trace.depths, strict=True)]
    assert sum(wasted[300:]) <= 8
    assert share(trace) <= 0.02


def test_cuts_keep_to_the_depths_there_are() -> None:
    graphs = run(
        MEMORY_BOUND,
        Phase(400, [0.5, 0.7]),
        limits=DepthLimits(5, allowed=(0, 5)),
        confidence=SURE,
    )
    assert {tuple(d.tolist()) for d in graphs.depths} <= {(0, 0), (5, 5)}
    least = DepthLimits(5, least=1)
    recurrent = run(CPU, Phase(300, [0.3, 0.6]), limits=least, confidence=SURE)
    assert all((d >= 1).all() for d in recurrent.depths)


class Sleeper(FixedDepth):
    """Never drafts, and rests; keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(0)
        self.plans, self.timings, self.rests = 0, 0, []  # type: ignore[var-annotated]

    def plan(self, slots: IntArray, lengths: IntArray, room: IntArray, **others: int) -> Plan:
        self.plans += 1
        return super().plan(slots, lengths, room, **others)

    def timed(self, times: StepTimes) -> None:
        self.timings += 1

    def rested(self, slots: IntArray, steps: int, seconds: float, propose: float) -> int:
        self.rests.append((steps, seconds))
        return 0


def test_the_simulator_rests_as_long_as_it_may() -> None:
    policy = Sleeper()
    rest = policy.plan(np.array([0]), np.array([1]), np.array([5])).rest
    trace = simulate(
        policy, WEIGHT_BOUND, [Phase(3 * (rest + 1) + 1, [0.5])], depth=5, length=8192, noise=0,
        outliers=0,
    )  # fmt: skip
    assert policy.plans == 2 + 4, "asked here, at first, and after each rest"
    assert policy.timings == 4
    assert [steps for steps, _ in policy.rests] == [rest] * 3
    assert policy.rests[0][1] == pytest.approx(np.mean(trace.took[1 : rest + 1]))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_a_load_that_ends_in_a_pause_is_noticed(machine: Machine) -> None:
    """Few steps of a pause are timed one by one."""
    policy = AdaptiveDepth(1, DepthLimits(5))
    phases = Phase(100, [0.9]), Phase(300, [0.0], load=3.0), Phase(150, [0.0])
    simulate(policy, machine, phases, depth=5, length=16384)
    cost = policy._cost(1, 17_000)
    assert cost is not None
    assert cost(0, 0) == pytest.approx(machine.step(1, 17_000)(0, 0), rel=0.1)
