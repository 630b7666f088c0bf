# SPDX-License-Identifier: Apache-2.0
"""When a selection is due: by the configured interval, or later while acceptance holds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from diffspec.adaptive_depth.interval import RetrievalInterval

INTERVAL, REACH = 4, 64


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def due(interval: RetrievalInterval, steps: int, ahead: int, slot: int = 0) -> bool:
    (late,) = interval.overdue(array(slot), array(steps), array(ahead))
    return bool(late)


def chain(rng: random.Random, rate: float, depth: int) -> int:
    """Tokens accepted of a chain each of whose tokens is right at ``rate``."""
    accepted = 0
    while accepted < depth and rng.random() < rate:
        accepted += 1
    return accepted


@pytest.mark.parametrize(("steps", "late"), [(3, False), (4, True), (5, True)])
def test_one_that_does_not_adapt_is_the_configured_one(steps: int, late: bool) -> None:
    interval = RetrievalInterval(2, interval=INTERVAL)
    interval.observe(array(0), array(3), array(3))
    interval.selected(array(0), np.array([1.0]))
    assert due(interval, steps, ahead=1) == late


def test_a_selection_that_moves_waits_while_all_is_right_and_its_reach_lasts() -> None:
    interval = RetrievalInterval(2, interval=INTERVAL, reach=REACH)
    interval.selected(array(0, 1), np.array([0.5, 0.5]))
    interval.observe(array(0), array(3), array(3))
    assert not due(interval, 9, ahead=REACH)
    assert due(interval, 9, ahead=REACH + 1)
    interval.observe(array(0), array(3), array(2))
    assert due(interval, 9, ahead=10)
    assert not due(interval, 3, ahead=10), "never earlier than configured"
    assert not due(interval, 9, ahead=10, slot=1), "another request's rejection is its own"
    interval.renewed(array(0))
    assert not due(interval, 9, ahead=10)


def test_a_selection_that_stays_the_same_needs_no_reach() -> None:
    interval = RetrievalInterval(2, interval=INTERVAL, reach=0)
    interval.observe(array(0, 1), array(3, 3), array(3, 3))
    interval.selected(array(0, 1), np.array([0.9, 0.89]))
    assert not due(interval, 9, ahead=1)
    assert due(interval, 9, ahead=1, slot=1)


def test_half_right_drafts_from_a_selection_that_moves_are_no_reason_to_wait() -> None:
    interval = RetrievalInterval(1, interval=INTERVAL, reach=REACH)
    for _ in range(200):
        interval.observe(array(0), array(4), array(2))
    interval.renewed(array(0))
    interval.observe(array(0), array(4), array(2))
    assert due(interval, 9, ahead=10)
    interval.selected(array(0), np.array([0.95]))
    assert not due(interval, 9, ahead=10 * REACH), "where it stays the same they are"


def mean_interval(rate: float, room: int, seed: int) -> float:
    """Steps between retrievals whose selections stay the same, with room for ``room`` steps."""
    rng, interval = random.Random(seed), RetrievalInterval(1, interval=INTERVAL, reach=REACH)
    interval.selected(array(0), np.array([1.0]))
    found, steps = [], 0
    for _ in range(6000):
        depth = rng.choice([1, 3, 7])  # what is usual must not hang on it
        interval.observe(array(0), array(depth), array(chain(rng, rate, depth)))
        steps += 1
        if steps == room or due(interval, steps, ahead=10 * REACH):
            found.append(steps)
            steps = 0
            interval.renewed(array(0))
            interval.selected(array(0), np.array([1.0]))
    return float(np.mean(found))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rate", "room"), [(0.9, 10), (0.9, 24), (0.7, 10), (0.7, 24), (0.5, 10)])
def test_noise_ends_no_stretch(rate: float, room: int, seed: int) -> None:
    """How long it is until a retrieval is due by chance, for a rate that is known exactly.

    Where at most one miss is improbable, chance is two misses in a row (three at 0.5), seen at or
    after the configured interval.
    """
    misses = 3 if rate == 0.5 else 2
    state = np.zeros(misses)
    state[0], mean = 1.0, 0.0
    for step in range(1, room + 1):
        mean += state.sum()
        missed = state[-1] * (1 - rate)
        state = np.concatenate(([rate * state.sum()], (1 - rate) * state[:-1]))
        if step < INTERVAL:  # too early to be due; the next one decides anew
            state[-1] += missed
    found = mean_interval(rate, room, seed)
    assert found == pytest.approx(mean, rel=0.12)
    assert found > (0.85 if rate == 0.9 else 0.4) * room


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rate", [0.7, 0.9, 1.0])
def test_a_draft_that_turns_wrong_ends_it_within_two_steps(rate: float, seed: int) -> None:
    rng, interval = random.Random(seed), RetrievalInterval(1, interval=INTERVAL, reach=REACH)
    interval.selected(array(0), np.array([1.0]))
    for _ in range(300):
        interval.observe(array(0), array(5), array(chain(rng, rate, 5)))
    interval.observe(array(0), array(5), array(5))
    assert not due(interval, 9, ahead=10)
    for _ in range(2):
        interval.observe(array(0), array(5), array(0))
    assert due(interval, INTERVAL, ahead=10)
    interval.renewed(array(0))
    for _ in range(500):  # and while it stays wrong, the interval is the configured one
        interval.observe(array(0), array(5), array(0))
        assert due(interval, INTERVAL, ahead=10)
        assert not due(interval, INTERVAL - 1, ahead=10)
    interval.observe(array(0), array(5), array(5))
    assert not due(interval, INTERVAL, ahead=10), "it is right again"


def test_a_slots_next_request_starts_anew() -> None:
    interval = RetrievalInterval(1, interval=INTERVAL, reach=REACH)
    for _ in range(200):
        interval.observe(array(0), array(4), array(0))
    interval.selected(array(0), np.array([1.0]))
    interval.forget(0)
    assert not due(interval, 9, ahead=10)
    for _ in range(2):
        interval.observe(array(0), array(4), array(0))
    assert due(interval, 9, ahead=10), "by what a new one shows, not by what was usual before"
