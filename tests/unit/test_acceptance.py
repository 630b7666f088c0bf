# SPDX-License-Identifier: Apache-2.0
"""Acceptance statistics against counts of our own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffspec.adaptive_depth.acceptance import (
    FIRST_GUESS,
    MEMORY,
    PRIOR_FADE,
    PRIOR_LEAST,
    PRIOR_WEIGHT,
    TOGETHER,
    AcceptanceStatistics,
)

K = 4
ONE = np.array([1])


def feed(statistics: AcceptanceStatistics, slot: int, *steps: tuple[int, int]) -> None:
    for drafted, accepted in steps:
        statistics.observe(np.array([slot]), np.array([drafted]), np.array([accepted]))


def test_nothing_seen_is_guessed_alike_at_every_position() -> None:
    statistics = AcceptanceStatistics(2, K)
    assert statistics.rates(ONE)[0] == pytest.approx([FIRST_GUESS] * K)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_estimates_approach_the_true_conditional_rates(rate: float) -> None:
    statistics = AcceptanceStatistics(2, K)
    rng = np.random.default_rng(0)
    found = []
    for step in range(3000):
        accepted = int(np.cumprod(rng.random(K) < rate).sum())
        feed(statistics, 1, (K, accepted))
        if step > 300:
            found.append(statistics.rates(ONE)[0])
    mean = np.mean(found, axis=0)
    assert mean[0] == pytest.approx(rate, abs=0.04)
    # Deeper positions are tried less often, and lean on the one before.
    assert mean[1:] == pytest.approx([rate] * (K - 1), abs=0.12)
    assert statistics.process_rates()[0] == pytest.approx(rate, abs=0.08)


def test_only_positions_that_were_reached_count() -> None:
    statistics = AcceptanceStatistics(2, K)
    before = statistics.rates(ONE)[0]
    # Position 2 is rejected; 3 and 4 were drafted but say nothing.
    for _ in range(20):
        feed(statistics, 1, (K, 1))
    rates = statistics.rates(ONE)[0]
    assert rates[0] > 0.95
    assert rates[1] < 0.1
    assert rates[2] <= before[2], "a position nobody reached is as good as the one before it"


def test_the_prior_of_all_requests_fades_as_a_request_shows_its_own() -> None:
    statistics = AcceptanceStatistics(3, K)
    for _ in range(200):
        feed(statistics, 0, (K, K))
    assert statistics.rates(ONE)[0, 0] > 0.9, "a new request starts where the others are"
    seen = []
    for _ in range(12):
        feed(statistics, 1, (K, 0))
        seen.append(statistics.rates(ONE)[0, 0])
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 0.1
    assert statistics.rates(np.array([0]))[0, 0] > 0.9


def test_a_turn_is_believed_after_a_few_outcomes() -> None:
    statistics = AcceptanceStatistics(2, K)
    for _ in range(100):
        feed(statistics, 1, (K, 0))
    assert statistics.rates(ONE)[0, 0] < 0.05
    for _ in range(3):
        statistics.observe(ONE, ONE, ONE)
    assert statistics.rates(ONE)[0, 0] > 0.6
    for _ in range(3):
        feed(statistics, 1, (K, 0))
    assert statistics.rates(ONE)[0, 0] < 0.6


def test_one_outcome_is_evidence() -> None:
    statistics = AcceptanceStatistics(2, K)
    statistics.observe(ONE, ONE, ONE)
    assert statistics.rates(ONE)[0, 0] > FIRST_GUESS


def test_a_short_run_that_is_not_unusual_is_no_turn() -> None:
    statistics = AcceptanceStatistics(2, K)
    for _ in range(100):
        feed(statistics, 1, (1, 1), (1, 0))
    for _ in range(5):
        feed(statistics, 1, (1, 0))
    assert statistics.turns == 0
    for _ in range(10):
        feed(statistics, 1, (1, 0))
    assert statistics.turns == 1


def test_a_change_of_the_text_drops_what_was_known_of_every_position() -> None:
    """Against the outcomes themselves, those from before the run dropped at a change."""
    statistics, rng, turns, longest = AcceptanceStatistics(2, K), np.random.default_rng(3), 0, 0
    steps: list[int] = []
    for rate in (0.93, 1.0, 0.0, 1.0, 0.05, 0.98):
        for _ in range(150):
            steps.append(int(np.cumprod(rng.random(K) < rate).sum()))
            feed(statistics, 1, (K, steps[-1]))
            if statistics.turns > turns:
                turns = statistics.turns
                run = next(
                    (n for n, a in enumerate(reversed(steps)) if (a > 0) != (steps[-1] > 0)),
                    len(steps),
                )
                steps, longest = steps[-run:], max(longest, run)
            process, rates = statistics.process_rates(), statistics.rates(ONE)[0]
            weight = max(PRIOR_LEAST, PRIOR_WEIGHT / (1 + statistics.seen[1] / PRIOR_FADE))
            shift = 0.0
            for i in range(K):
                outcomes = np.array([accepted > i for accepted in steps if accepted >= i], float)
                kept = (1 - 1 / MEMORY) ** np.arange(len(outcomes))[::-1]
                prior = min(max(process[i] + shift, 0.01), 0.99)
                expected = ((kept * outcomes).sum() + weight * prior) / (kept.sum() + weight)
                assert rates[i] == pytest.approx(expected)
                shift = expected - process[i]
    assert turns >= 4
    assert longest > MEMORY, "a run longer than what is remembered"


def test_requests_that_stay_as_they_are_do_not_turn() -> None:
    statistics = AcceptanceStatistics(2, K)
    for _ in range(400):
        statistics.observe(np.array([0, 1]), np.array([K, K]), np.array([K, 0]))
    assert statistics.turns == 0


def test_forgetting_a_slot_leaves_the_others_alone() -> None:
    statistics = AcceptanceStatistics(2, K)
    for _ in range(30):
        feed(statistics, 0, (K, K))
        feed(statistics, 1, (K, 0))
    other = statistics.rates(np.array([0]))
    statistics.forget(1)
    assert (statistics.rates(np.array([0])) == other).all()
    assert statistics.rates(ONE)[0, 0] > 0.2
    assert statistics.seen.tolist() == [30, 0]


@given(st.lists(st.tuples(st.integers(1, K), st.integers(0, K)), max_size=60))
def test_rates_stay_probabilities(steps: list[tuple[int, int]]) -> None:
    statistics = AcceptanceStatistics(2, K)
    for drafted, accepted in steps:
        feed(statistics, 1, (drafted, min(drafted, accepted)))
    rates = statistics.rates(np.array([0, 1]))
    assert ((rates > 0) & (rates < 1)).all()


def test_requests_are_learnt_from_together_as_one_by_one() -> None:
    together, single = (AcceptanceStatistics(3, K) for _ in range(2))
    slots, drafted, accepted = np.array([2, 0]), np.array([3, 2]), np.array([1, 2])
    together.observe(slots, drafted, accepted)
    for i in range(2):
        single.observe(slots[i : i + 1], drafted[i : i + 1], accepted[i : i + 1])
    every = np.arange(3)
    assert together.rates(every) == pytest.approx(single.rates(every), abs=1e-2)


@given(
    st.lists(st.tuples(st.integers(1, K), st.integers(0, K), st.booleans()), max_size=3 * TOGETHER)
)
def test_steps_are_learnt_from_together_as_one_by_one(steps: list[tuple[int, int, bool]]) -> None:
    both, one_by_one, together = (
        np.arange(2),
        AcceptanceStatistics(2, K),
        AcceptanceStatistics(2, K),
    )
    for drafted, accepted, alone in steps:
        what = np.array([[drafted, min(drafted, accepted)], [K, accepted]])
        for statistics in (one_by_one, together):
            statistics.observe(*((ONE, *what[1:].T) if alone else (both, *what.T)))
        one_by_one.rates(both)  # whoever asks is told
    if one_by_one.turns or together.turns:  # a change may be found later, or be over
        return
    assert together.rates(both) == pytest.approx(one_by_one.rates(both))
    assert together.process_rates() == pytest.approx(one_by_one.process_rates())
    assert together.seen.tolist() == one_by_one.seen.tolist()


def test_a_change_is_found_among_steps_that_are_learnt_from_together() -> None:
    """Nobody asks before all is over: the last run is compared with what was before it."""
    statistics = AcceptanceStatistics(2, K)
    for accepted in [K] * (4 * TOGETHER) + [0] * 6:
        feed(statistics, 1, (K, accepted))
    assert statistics.rates(ONE)[0, 0] < 0.1
    assert statistics.turns == 1
