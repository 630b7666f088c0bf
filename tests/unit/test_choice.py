# SPDX-License-Identifier: Apache-2.0
"""The joint choice of depths against trying every combination."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffspec.adaptive_depth.choice import StepCost, choose, choose_uniform, evaluate, gains_of
from diffspec.adaptive_depth.cost import bucket

RATES = st.floats(0.02, 0.98)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[float], float]:
    b, depth = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rates = np.array([[draw(RATES) for _ in range(depth)] for _ in range(b)])
    caps = np.array([draw(st.integers(0, depth)) for _ in range(b)])
    rows = [draw(st.floats(1, 10)) for _ in range(b * (depth + 1) + 1)]
    return gains_of(rates), caps, rows, draw(st.floats(0, 2))


def times(rows: list[float], per_depth: float, b: int) -> StepCost:
    """Any time at all per number of verified rows, and a time per draft step."""
    return StepCost(lambda drafted: rows[bucket(b + drafted)], lambda deepest: per_depth * deepest)


def linear(per_token: float) -> StepCost:
    return StepCost(lambda drafted: 1 + per_token * drafted, lambda deepest: 0.0)


@settings(deadline=None)
@given(problems(), st.sampled_from([0, 1]))
def test_no_combination_is_better(
    problem: tuple[np.ndarray, np.ndarray, list[float], float], least: int
) -> None:
    gains, caps, rows, per_depth = problem
    b = len(caps)
    seconds = times(rows, per_depth, b)
    best = choose(gains, caps, seconds, least=least)
    assert (best.depths <= caps).all()
    assert (best.depths >= np.minimum(caps, least)).all()
    rates = [
        evaluate(gains, np.array(depths), seconds).rate
        for depths in itertools.product(*(range(min(c, least), c + 1) for c in caps))
    ]
    assert best.rate == pytest.approx(max(rates))
    again = evaluate(gains, best.depths, seconds)
    assert (again.tokens, again.seconds) == pytest.approx((best.tokens, best.seconds))


def test_effort_goes_where_it_is_of_use() -> None:
    gains = gains_of(np.array([[0.95] * 5, [0.3] * 5, [0.6] * 5]))
    caps = np.full(3, 5)
    best = choose(gains, caps, linear(0.1))
    good, bad, middling = best.depths.tolist()
    assert good > middling > bad


def test_a_host_with_graphs_for_some_depths() -> None:
    gains = gains_of(np.array([[0.9] * 5, [0.5] * 5]))
    caps = np.array([5, 5])
    best = choose_uniform(gains, caps, linear(0.01), (0, 5))
    assert best.depths.tolist() == [5, 5]
    best = choose_uniform(gains, caps, linear(1), (0, 5))
    assert best.depths.tolist() == [0, 0]


def test_many_requests_need_few_looks_at_the_cost_model() -> None:
    looks = 0

    def verify(drafted: int) -> float:
        nonlocal looks
        looks += 1
        return 1 + 0.001 * drafted

    rates = np.random.default_rng(0).uniform(0.3, 0.95, (256, 7))
    choose(gains_of(rates), np.full(256, 7), StepCost(verify, lambda deepest: 0.1))
    assert looks < 64
