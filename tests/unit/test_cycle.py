# SPDX-License-Identifier: Apache-2.0
"""The drafting cycle over simulated serving, every step checked against a naive float64 oracle."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffspec.adaptive_depth.policy import Plan
from tests.unit import tiny_draft as tiny
from tests.unit.naive import Recorder
from tests.unit.oracle import Oracle
from tests.unit.serving import Host, Request, Shape

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = st.builds(
    Shape,
    chunk=st.sampled_from([4, 8]),
    page=st.sampled_from([4, 6, 16]),
    budget=st.sampled_from([80, 96]),
    interval=st.sampled_from([1, 2, 4]),
    depth=st.integers(1, 4),
    slots=st.sampled_from([2, 8]),
    max_len=st.just(170),
    reach=st.sampled_from([0, 12]),
)
FAULTS = ("combine", "write", "output")


class Serving:
    """A host and its oracle in lockstep."""

    def __init__(self, shape: Shape, seed: int = 0, *, feed_normed: bool = False) -> None:
        self.shape, self.rng = shape, random.Random(seed)
        self.host = Host(shape, seed=seed, feed_normed=feed_normed)
        self.oracle = Oracle(self.host)
        self.names = 0

    def text(self, length: int | None = None) -> list[int]:
        return [self.rng.randrange(tiny.VOCAB) for _ in range(length or self.shape.max_len + 1)]

    def join(
        self, prompt: int, text: list[int] | None = None, blocks: tuple[int, ...] = ()
    ) -> Request:
        self.names += 1
        return self.host.join(f"r{self.names}", text or self.text(), prompt, blocks)

    def leave(self, request: Request) -> None:
        self.host.leave(request)
        self.oracle.leave(request)

    def preempt(self, request: Request) -> None:
        self.host.preempt(request)
        self.oracle.preempt(request)

    def step(self, *work: tuple[Request, int], fault: str | None = None) -> list[list[int]]:
        if fault is None:
            rows, drafts = self.host.step(work)
        else:
            rows, drafts = self.host.step(work, self.host.fault(fault))
        self.oracle.check(rows, drafts, fault)
        return drafts

    def prefilled(self, *prompts: int) -> list[Request]:
        """That many requests after their prompts, in one step."""
        requests = [self.join(prompt) for prompt in prompts]
        self.step(*((r, r.known) for r in requests))
        return requests

    def change_depths(self) -> None:
        """Other depths for every slot, often none at all, and secret drafts here and there."""
        shape, policy, rng = self.shape, self.host.policy, self.rng
        most = rng.choice([0, 0, shape.depth + 1])
        policy.by_slot = np.array([rng.randint(0, most) for _ in range(shape.slots)])
        policy.shadow_by_slot = np.array([rng.choice([0, 0, 0, 1, 3]) for _ in range(shape.slots)])

    def cut_chains(self) -> None:
        """Submit other shares of every slot's chains, often nothing of them."""
        depths = [self.rng.randint(0, self.shape.depth) for _ in range(self.shape.slots)]
        self.host.policy.submit_by_slot = np.array(depths)

    def random_step(self, *, batch: int, fault: str | None = None) -> None:
        """Requests leave, are preempted, join (some on a prefix hit), prefill and decode; the host
        now and then schedules fewer drafts than were proposed, as a grammar makes it do."""
        rng, host, page = self.rng, self.host, self.shape.page
        for request in list(host.requests):
            if request.known >= self.shape.max_len or rng.random() < 0.03:
                self.leave(request)
            elif rng.random() < 0.03:
                self.preempt(request)
        work: list[tuple[Request, int]] = []
        for request in host.requests:
            if rng.random() < 0.2:
                request.drafts = request.drafts[: rng.randint(0, self.shape.depth)]
            if rng.random() < 0.9:
                need = request.known - request.computed
                rows = need if rng.random() < 0.5 else rng.randint(1, need)
                work.append((request, rng.randint(0, 5) if request.decoding else rows))
        if len(host.requests) < batch and rng.random() < 0.5:
            prompt = rng.randint(1, 130)
            # A hit on pages that another request fills no later than in this step.
            for other, amount in work:
                filled = other.computed + (0 if other.decoding else amount)
                shared = rng.randint(0, filled // page)
                if 0 < shared * page < prompt and len(other.blocks) >= shared:
                    text = other.text[: shared * page + 1] + self.text()
                    request = self.join(
                        prompt, text[: self.shape.max_len + 1], tuple(other.blocks[:shared])
                    )
                    break
            else:
                request = self.join(prompt)
            work.append((request, rng.randint(1, prompt - request.computed)))
        rng.shuffle(work)
        if work:
            self.step(*work, fault=fault)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(SHAPES, st.integers(0, 10**6), st.booleans())
def test_random_serving(shape: Shape, seed: int, feed_normed: bool) -> None:
    serving = Serving(shape, seed, feed_normed=feed_normed)
    for _ in range(40):
        serving.random_step(batch=8)
    assert not serving.host.cycle.faults.counts
    serving.oracle.check_canonical()


@settings(max_examples=8, deadline=None, derandomize=True)
@given(SHAPES, st.integers(0, 10**6))
def test_random_serving_with_changing_depths(shape: Shape, seed: int) -> None:
    serving = Serving(shape, seed)
    for _ in range(40):
        serving.change_depths()
        serving.random_step(batch=4)
    assert not serving.host.cycle.faults.counts
    serving.oracle.check_canonical()


@settings(max_examples=8, deadline=None, derandomize=True)
@given(SHAPES, st.integers(0, 10**6))
def test_random_serving_with_chains_cut(shape: Shape, seed: int) -> None:
    serving = Serving(shape, seed)
    for _ in range(40):
        serving.change_depths()
        serving.cut_chains()
        serving.random_step(batch=4)
    assert not serving.host.cycle.faults.counts
    serving.oracle.check_canonical()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(SHAPES, st.integers(0, 10**6), st.booleans())
def test_random_serving_with_faults(shape: Shape, seed: int, pauses: bool) -> None:
    serving = Serving(shape, seed)
    for _ in range(40):
        if serving.oracle.in_a_row < 2 and serving.rng.random() < 0.12:
            fault = serving.rng.choice(FAULTS[:2])
            serving.random_step(batch=4, fault=fault)
        elif pauses:
            serving.change_depths()
            serving.random_step(batch=4)
        else:
            serving.random_step(batch=4)
    assert not serving.host.cycle.faults.gave_up
    assert set(serving.host.cycle.faults.counts) <= {"ingesting verified rows"}
    serving.oracle.check_canonical()


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_from_whole_context_into_compact_selection(interval: int) -> None:
    serving = Serving(Shape(interval=interval, slots=1))
    (request,) = serving.prefilled(40)
    held = []
    while request.known < serving.shape.max_len:
        serving.step((request, serving.rng.randint(0, 3)))
        held.append(serving.host.cycle.slots.rows[0] == request.computed)
    border = held.index(False)
    assert border > 3, "the context was never whole"
    assert not any(held[border:])
    assert serving.oracle.counters.retrievals >= (len(held) - border - 1) // interval


def test_retrievals_wait_while_everything_is_accepted() -> None:
    counts = {}
    for reach in (0, 16):
        shape = Shape(chunk=16, interval=2, budget=160, max_len=300, slots=1, reach=reach)
        serving = Serving(shape)
        (request,) = serving.prefilled(200)
        for _ in range(20):
            serving.step((request, 3))
        counts[reach] = serving.oracle.counters.retrievals
        # One rejection, and the configured interval is back at once.
        before = serving.oracle.counters.retrievals
        for _ in range(3):
            serving.step((request, 0))
        assert serving.oracle.counters.retrievals > before
    assert counts[16] <= 0.6 * counts[0]


def test_chunked_prefill_drafts_only_at_its_end() -> None:
    serving = Serving(Shape())
    request = serving.join(100)
    for rows in (30, 1, 40):
        assert serving.step((request, rows)) == [[]]
    assert len(serving.host.cycle.slots) == 0
    assert len(serving.step((request, 29))[0]) == 3


def test_a_prefix_hit_on_pages_filled_in_the_same_step() -> None:
    serving = Serving(Shape())
    first = serving.join(90)
    # The first request takes its pages when its step begins; give them to it beforehand.
    first.blocks = [serving.host.free.pop() for _ in range(12)]
    serving.host.users[first.blocks] += 1
    second = serving.join(90, first.text[:81] + serving.text(), tuple(first.blocks[:10]))
    drafts = serving.step((second, 10), (first, 90))  # the reader comes before the writer
    assert [len(d) for d in drafts] == [3, 3]
    assert serving.oracle.counters.retrievals == 2


def test_preemption() -> None:
    serving = Serving(Shape())
    one, two = serving.prefilled(90, 50)
    serving.step((one, 2), (two, 1))
    serving.preempt(one)
    serving.step((two, 3))
    assert serving.step((two, 0), (one, 60))[1] == []
    assert [len(d) for d in serving.step((one, one.known - one.computed), (two, 3))] == [3, 3]


def test_requests_beyond_the_slots_wait_for_one() -> None:
    serving = Serving(Shape(slots=2))
    one, two, three = serving.prefilled(30, 30, 30)
    assert three.drafts == []
    assert serving.oracle.counters.no_slot == 1
    serving.leave(one)
    assert [len(d) for d in serving.step((two, 1), (three, 0))] == [3, 3]
    assert serving.host.policy.forgotten == [0]


def test_drafts_stop_where_the_model_ends() -> None:
    serving = Serving(Shape(max_len=60))
    (request,) = serving.prefilled(54)
    lengths = [len(request.drafts)]
    while request.known < 60:
        lengths += [len(serving.step((request, 0))[0])]
    assert lengths == [3, 3, 3, 2, 1, 0]
    assert request.computed == 59


@pytest.mark.parametrize("fault", ["combine", "write"])
def test_pages_of_a_failed_ingest_are_never_attended(fault: str) -> None:
    """Pages start as NaN, so a lost row that was attended would spoil every comparison."""
    serving = Serving(Shape(page=16, chunk=4))
    one, two = serving.prefilled(36, 20)
    serving.step((one, 1), (two, 0), fault=fault)
    lost = {r.name: set(range(r.computed - 1 - (r is one), r.computed)) for r in (one, two)}
    waits = 0
    while not serving.step((one, 0), (two, 0))[0]:
        waits += 1
    # The request drafts again once its newest chunk lies in the next page.
    assert one.computed == 49
    assert waits == 48 - max(lost[one.name]) - 1
    for _ in range(12):
        serving.step((one, 3), (two, 3))
    for request in (one, two):
        attended = set(serving.oracle.held[request.name].positions)
        assert not attended & lost[request.name]
    assert serving.host.canonical.has_holes


def test_a_rewritten_page_is_whole_again() -> None:
    serving = Serving(Shape())
    (one,) = serving.prefilled(30)
    serving.step((one, 3), fault="combine")
    assert serving.step((one, 0)) == [[]]
    # The same pages in the same order, filled from their first rows.
    one.computed, one.drafts = 0, []
    serving.host.cycle.slots.drop(one.name)
    assert len(serving.step((one, one.known))[0]) == 3
    assert not serving.host.canonical.has_holes
    assert serving.host.cycle.slots.rows[0] == one.computed


def test_stale_table_entries_do_not_block_a_tail_chunk() -> None:
    serving = Serving(Shape(page=4, chunk=16, budget=128))
    (gone,) = serving.prefilled(100)
    serving.step((gone, 0), fault="combine")
    serving.leave(gone)
    assert serving.host.canonical.has_holes
    (request,) = serving.prefilled(50)
    # Past its pages the table names pages at random; now all of them are holes.
    others = sorted(set(range(serving.shape.blocks)) - set(request.blocks))
    serving.host.canonical.mark_holes(torch.tensor(others) * 4)
    serving.oracle.holes |= set(others)
    serving.host.cycle.slots.drop_all()
    serving.oracle.held.clear()
    assert len(serving.step((request, 0))[0]) == 3


def test_a_drafting_fault_costs_one_step() -> None:
    serving = Serving(Shape())
    one, two = serving.prefilled(100, 30)
    assert serving.step((one, 1), (two, 1), fault="output") == [[], []]
    assert [len(d) for d in serving.step((one, 0), (two, 0))] == [3, 3]
    assert serving.host.cycle.faults.counts == {"drafting": 1}
    assert not serving.host.canonical.has_holes


def test_three_faults_in_a_row_end_drafting_but_not_ingest() -> None:
    serving = Serving(Shape())
    (one,) = serving.prefilled(30)
    for fault in ("output", "combine", "output"):
        serving.step((one, 0), fault=fault)
    assert serving.host.cycle.faults.gave_up
    before = serving.oracle.check_canonical()
    for _ in range(20):
        assert serving.step((one, 0)) == [[]]
    late = serving.join(20)
    assert serving.step((one, 0), (late, 20)) == [[], []]
    # The last of 22 rows wait, as nobody reads what they would become.
    waiting = len(serving.oracle.waiting)
    assert serving.oracle.check_canonical() == before + 21 + 20 - waiting


def test_a_selection_is_compared_with_the_one_before_if_there_was_one() -> None:
    serving = Serving(Shape(interval=1, slots=1))
    (request,) = serving.prefilled(120)
    cycle, counters = serving.host.cycle, serving.oracle.counters
    assert counters.retrievals == 1
    assert cycle.numbers()["rows_changed"] == 0
    assert math.isnan(cycle.numbers()["stability"]), "there is nothing to compare with"
    before = serving.oracle.held[request.name].present
    serving.step((request, 0))
    now = serving.oracle.held[request.name].present
    known = cycle.numbers()
    assert known["stability"] == pytest.approx(len(before & now) / len(now), abs=1e-6)
    assert known["rows_changed"] == 4 * len(now - before)
    serving.host.policy.by_slot[:] = 0
    serving.step((request, 0))
    serving.host.policy.by_slot[:] = 3
    serving.step((request, 0))
    assert counters.retrievals == 3, "it paused, so all is made anew"
    after = cycle.numbers()
    assert [after[key] for key in ("stability", "rows_changed")] == [
        known[key] for key in ("stability", "rows_changed")
    ]


def test_every_step_without_drafts_has_one_reason() -> None:
    serving = Serving(Shape(slots=4))
    policy, counters = serving.host.policy, serving.host.cycle.counters
    requests = serving.prefilled(100, 60, 50, 40, 30)
    assert counters.zero["no_slot"] == 1
    policy.by_slot[:2], policy.by_slot[2:4] = 3, 0
    policy.shadow_by_slot[2:4] = 0, 3
    serving.step(*((r, 0) for r in requests), fault="output")
    # What was to be submitted met the fault; the rest would have had no drafts anyhow.
    expected = {"no_slot": 2, "no_gain": 2, "fault": 2}
    assert {key: n for key, n in counters.zero.items() if n} == expected
    serving.step(*((r, 0) for r in requests), fault="combine")
    expected = {"no_slot": 3, "no_gain": 4, "fault": 4}
    assert {key: n for key, n in counters.zero.items() if n} == expected


def test_what_a_host_puts_in_of_its_own_says_nothing_of_the_draft() -> None:
    """A recurrent target must always have drafts; a step without any gets the last token again."""
    serving = Serving(Shape())
    host = serving.host
    one, two = serving.prefilled(100, 30)
    serving.step((one, 1), (two, 1), fault="output")
    counted = host.cycle.counters.scheduled
    for request in (one, two):
        assert request.drafts == []
        request.drafts = [request.text[request.known - 1]]
    host.step([(one, 0), (two, 1)])
    assert host.policy.observed == []
    assert host.cycle.counters.scheduled == counted + 2, "the host did send them"
    host.step([(one, 3), (two, 0)])
    assert host.policy.observed == [(0, 3, 3, -1), (1, 3, 0, -1)]


def test_nothing_of_an_earlier_owner_stays_in_a_slot() -> None:
    """Neither its selection, which would earn loyalty, nor values that are not finite."""
    serving = Serving(Shape(slots=2))
    one, other = serving.prefilled(120, 30)
    working_set = serving.host.working_set
    assert working_set._present[0].any()
    serving.leave(one)
    working_set.working.v[0] = torch.nan
    working_set._present[0] = True
    serving.prefilled(20)  # fewer rows than the other request's
    two = serving.host.requests[-1]
    assert not working_set._present[0].any()
    drafts = serving.step((two, 0), (other, 0))
    assert [len(d) for d in drafts] == [3, 3]


def test_rows_wait_while_nobody_drafts_and_are_there_when_somebody_does() -> None:
    serving = Serving(Shape(waiting=6))
    one, two = serving.prefilled(40, 40)
    before = serving.oracle.check_canonical()
    policy = serving.host.policy
    policy.by_slot[:] = 0
    for _ in range(3):
        serving.step((one, 0), (two, 0))
    assert serving.oracle.check_canonical() == before, "six rows fit and wait"
    serving.step((one, 0))
    assert serving.oracle.check_canonical() == before + 7, "no room for a seventh"
    serving.step((one, 0), (two, 0))
    policy.by_slot[1] = 3
    assert [len(d) for d in serving.step((one, 0), (two, 0))] == [0, 3]
    assert serving.oracle.check_canonical() == before + 7 + 4


def test_resting_steps_need_no_plan_and_lose_nothing() -> None:
    serving = Serving(Shape(waiting=8))
    one, two = serving.prefilled(40, 40)
    policy, cycle = serving.host.policy, serving.host.cycle
    policy.by_slot[:], policy.rest_steps = 0, 3
    for _ in range(6):
        serving.step((one, 0), (two, 0))
    # Of every four steps three are not planned for; the sixth one is in its second rest.
    assert policy.rested_steps == 3
    policy.by_slot[:], policy.rest_steps = 3, 0
    three = serving.join(10)
    assert [len(d) for d in serving.step((one, 0), (two, 0), (three, 10))] == [3, 3, 3]
    assert policy.rested_steps == 4
    serving.oracle.check_canonical()
    counters = cycle.counters
    assert counters.zero["no_gain"] == 12
    assert counters.depths.tolist() == [12, 0, 0, 5]


def test_a_rest_goes_on_as_the_policy_says_and_writes_what_does_not_fit() -> None:
    serving = Serving(Shape(waiting=8))
    one, two = serving.prefilled(40, 40)
    policy, cycle = serving.host.policy, serving.host.cycle
    policy.by_slot[:], policy.rest_steps, policy.rests_on = 0, 3, 2
    before = serving.oracle.check_canonical()
    plans = 0

    def plan(*args: Any, **kwargs: Any) -> Plan:
        nonlocal plans
        plans += 1
        return type(policy).plan(policy, *args, **kwargs)

    policy.plan = plan  # type: ignore[method-assign]
    for _ in range(11):
        serving.step((one, 0), (two, 0))
    # One is planned for, then 3, 2, 2, 2 and, so far, 1 rest.
    assert plans == 1
    assert policy.rested_steps == 9
    assert serving.oracle.check_canonical() == before + 16, "four steps' rows fit; two times full"
    assert cycle.numbers()["zero/no_gain"] == 22
    assert policy.rested_steps == 10
    serving.step((one, 0), (two, 0))
    assert plans == 1, "asking for numbers ends no rest"
    policy.rests_on = 0
    policy.by_slot[:] = 3
    drafts = [serving.step((one, 0), (two, 0)) for _ in range(2)]
    assert [[len(d) for d in step] for step in drafts] == [[3, 3], [3, 3]]
    serving.oracle.check_canonical()


def test_a_secret_draft_of_a_preempted_request_keeps_nobody_from_resting() -> None:
    serving = Serving(Shape(waiting=8))
    one, two = serving.prefilled(40, 40)
    policy, cycle = serving.host.policy, serving.host.cycle
    policy.by_slot[:] = 0
    policy.shadow_by_slot[0] = 3
    serving.step((one, 0), (two, 0))
    assert list(cycle.slots.shadows) == [0], "drafted in secret, and not compared yet"
    serving.host.preempt(one)
    policy.shadow_by_slot[:], policy.rest_steps = 0, 3
    for _ in range(4):
        serving.step((two, 0))
    assert serving.host.resting
    assert cycle.numbers()["zero/no_gain"] == 6
    assert policy.rested_steps == 3


def test_a_rest_ends_with_the_context() -> None:
    shape = Shape()
    serving = Serving(shape)
    (one,) = serving.prefilled(shape.max_len - 20)
    policy, cycle = serving.host.policy, serving.host.cycle
    policy.by_slot[:], policy.rest_steps, policy.rests_on = 0, 5, 1000
    while cycle.counters.zero["length_limit"] == 0:
        serving.step((one, 0))
    # The next token is the last that fits: there was no room for a draft, and that was noticed.
    assert one.computed == shape.max_len - 1


def test_rows_that_fill_a_rest_and_cannot_be_written_end_it() -> None:
    serving = Serving(Shape(waiting=4, page=4))
    (one,) = serving.prefilled(40)
    policy = serving.host.policy
    policy.by_slot[:], policy.rest_steps = 0, 20
    for _ in range(4):
        serving.step((one, 0))
    assert not serving.oracle.holes
    policy.rest_steps = 0
    serving.step((one, 0), fault="combine")
    assert len(serving.oracle.holes) == 1
    assert serving.host.cycle.faults.counts == {"ingesting verified rows": 1}
    policy.by_slot[:] = 3
    serving.step((one, 0))
    serving.oracle.check_canonical()


def test_rows_that_waited_are_lost_with_the_step_that_fails_to_write_them() -> None:
    serving = Serving(Shape(page=4))
    (one,) = serving.prefilled(40)
    serving.host.policy.by_slot[:] = 0
    for _ in range(4):
        serving.step((one, 0))
    serving.host.policy.by_slot[:] = 3
    serving.step((one, 0), fault="combine")
    assert len(serving.oracle.holes) == 2
    assert serving.host.cycle.faults.counts == {"ingesting verified rows": 1}


def test_secret_drafts_are_compared_and_never_submitted() -> None:
    serving = Serving(Shape(slots=2))
    one, two = serving.prefilled(40, 100)
    policy = serving.host.policy
    policy.by_slot[:] = 0
    policy.shadow_by_slot[:] = 1
    for _ in range(20):
        assert serving.step((one, 0), (two, 0)) == [[], []]
    assert serving.oracle.counters.shadows == 40
    # Whatever the draft says next is what the target will have sampled.
    for _ in range(3):
        (token,) = serving.host.cycle.slots.shadows[0].chain
        one.text[one.known] = token
        serving.step((one, 0), (two, 0))
    assert serving.oracle.counters.shadow_hits >= 3
    assert serving.host.cycle.counters.zero["no_gain"] == 2 * 23


def flat_masses(query: Tensor, table: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Masses by chunk number alone, each 1.5 times another: loyalty decides nothing."""
    chunks = -(-longest // 4)
    order = (torch.arange(chunks) * 7) % 64
    return (1.5 ** -order.float()).repeat(len(lengths), 1)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    pauses=st.lists(st.booleans(), min_size=24, max_size=24),
    accepted=st.lists(st.integers(0, 3), min_size=24, max_size=24),
    whole=st.booleans(),
)
def test_pausing_changes_no_draft(pauses: list[bool], accepted: list[int], whole: bool) -> None:
    """Depth 0 at any steps: whenever drafting goes on, it is as if it had never stopped.

    Compact selections depend on when they were made; interval 1 makes that every step.
    """
    seen: list[dict[int, list[int]]] = []
    for paused in (False, True):
        shape = Shape(interval=4 if whole else 1, budget=128 if whole else 64)
        host = Host(shape)
        host.working_set.masses = flat_masses
        rng = random.Random(0)
        text = [rng.randrange(tiny.VOCAB) for _ in range(shape.max_len + 1)]
        request = host.join("r", text, 30 if whole else 90)
        drafts_at: dict[int, list[int]] = {}
        host.step([(request, request.known)])
        for pause, amount in zip(pauses, accepted, strict=True):
            if request.known > shape.max_len - 10:
                break
            host.policy.by_slot[:] = 0 if pause and paused else shape.depth
            _, (draft,) = host.step([(request, amount if paused else 0)])
            drafts_at[request.computed] = draft
        if not paused:  # one token at a time: every length is seen
            while request.known < shape.max_len - 5:
                _, (draft,) = host.step([(request, 0)])
                drafts_at[request.computed] = draft
        assert not host.cycle.faults.counts
        seen.append(drafts_at)
    steady, stopped = seen
    assert len(steady) > len(pauses)
    assert all(steady.values())
    for (length, draft), pause in zip(stopped.items(), pauses, strict=False):
        assert draft == ([] if pause else steady[length])


@pytest.mark.parametrize("rebuild", [False, True])
def test_operations_do_not_grow_with_the_batch(rebuild: bool) -> None:
    """A step without and one with a rebuild of every request.

    Contexts are short enough for one scoring tile; tiles grow with the tokens scored, by one per
    TILE_TOKENS, not with the requests.
    """
    counts: dict[int, int] = {}
    for size in (1, 2, 3, 8):
        serving = Serving(Shape(interval=20, budget=256, max_len=400, blocks=500, slots=16))
        requests = serving.prefilled(*[300 if rebuild else 100] * size)
        assert all(len(r.drafts) == 3 for r in requests)
        if rebuild:
            serving.host.cycle.slots.drop_all()
        recorder = Recorder()
        work = [(request, i % 4) for i, request in enumerate(requests)]
        serving.host.step(work, recorder)
        assert len(serving.host.rebuilt) == (size if rebuild else 0)
        assert all(len(r.drafts) == 3 for r in requests)
        counts[size] = len(recorder.operations)
    assert counts[2] == counts[3] == counts[8]
    # A single request needs no mask: arange, compare, views and fill, at each draft step.
    assert 0 <= counts[2] - counts[1] <= 3 * 8
