# SPDX-License-Identifier: Apache-2.0
"""The cost model: lines that forget, tables that say what they have not seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffspec.adaptive_depth.cost import STALE, CostModel, bucket, buckets
from diffspec.adaptive_depth.line import LASTING, Line
from diffspec.adaptive_depth.load import Estimate


def test_a_line_through_noisy_samples() -> None:
    rng, line = np.random.default_rng(0), Line()
    for x in rng.uniform(1000, 16000, 400):
        line.add(x, (5 + x / 1000) * (1 + 0.02 * rng.standard_normal()))
    for x in (2000, 8000, 15000):
        assert line.at(x) == pytest.approx(5 + x / 1000, rel=0.06)
        assert line.knows(x)
    assert line.spans()
    assert line.slope() == pytest.approx(1e-3, rel=0.1)
    assert not line.knows(40000)


def test_samples_at_one_place_take_the_given_slope() -> None:
    line = Line()
    for _ in range(10):
        line.add(8000, 20.0)
    assert not line.spans()
    assert line.at(8000) == pytest.approx(20)
    assert line.at(16000, slope=1e-3) == pytest.approx(28)


def test_outliers_and_the_first_run_hardly_move_a_line() -> None:
    line = Line()
    line.add(100, 900.0)  # compiles
    for i in range(200):
        line.add(100, 200.0 if i % 20 == 19 else 10.0)
    assert line.at(100) == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("after", [3.0, 20.0])
def test_a_lasting_change_is_followed_at_once(after: float) -> None:
    line = Line()
    for _ in range(200):
        line.add(100, 10.0)
    for _ in range(LASTING - 1):
        line.add(100, after)
    assert line.at(100) == pytest.approx(10, rel=0.15), "these may be outliers"
    line.add(100, after)
    assert line.at(100) == pytest.approx(after, rel=0.05)


def test_a_change_is_taken_for_no_more_than_all_of_its_samples_say() -> None:
    line = Line()
    for _ in range(200):
        line.add(100, 10.0)
    for seconds in (90.0, 20.0, 50.0, 30.0):
        line.add(100, seconds)
    assert 15 < line.at(100) < 25


@given(st.integers(1, 5000))
def test_buckets_cover_and_stay_close(count: int) -> None:
    entry = bucket(count)
    assert count <= entry < count * 1.125 + 1
    assert bucket(entry) == entry
    assert buckets(count + 1)[count] == entry


def test_the_table_of_many_requests_is_bounded() -> None:
    assert len({bucket(n) for n in range(1, 4097)}) < 100


def known(model: CostModel, requests: int, rows: int, context: int, seconds: float) -> None:
    for _ in range(60):
        model.observe_verify(requests, rows, context, seconds)


def found(model: CostModel, requests: int, rows: int, context: int = 1000) -> Estimate:
    """What is believed of such a step; something has to be."""
    estimate = model.load(requests, context).verify(rows)
    assert estimate is not None
    return estimate


def test_what_was_measured_is_told_from_what_was_not() -> None:
    model = CostModel()
    assert model.load(1, 8000).verify(1) is None
    known(model, 1, 1, 8000, 0.020)
    known(model, 1, 4, 8000, 0.042)
    seen = found(model, 1, 4, 8200)
    assert seen.seen
    assert seen.seconds == pytest.approx(0.042, rel=0.02)
    guess = found(model, 1, 2, 8000)
    assert not guess.seen
    assert guess.seconds == pytest.approx(0.020 + 0.022 / 3, rel=0.02)
    far = found(model, 1, 4, 32000)
    assert not far.seen
    other = found(model, 2, 8, 8000)
    assert not other.seen
    assert other.seconds == pytest.approx(0.042, rel=0.02), "the same rows per request"


def test_a_slope_learnt_in_one_entry_serves_the_others() -> None:
    model = CostModel()
    for context in range(2000, 17000, 100):
        model.observe_verify(1, 1, context, 0.005 + context * 1e-6)
    known(model, 1, 4, 4000, 0.030)
    far = found(model, 1, 4, 16000)
    assert far.seconds == pytest.approx(0.042, rel=0.06)


def test_seeds_give_a_shape_until_there_is_more() -> None:
    model = CostModel()
    for rows, seconds in ((1, 0.010), (2, 0.018), (4, 0.020)):
        model.seed(rows, seconds)
    first = found(model, 1, 4, 5000)
    assert first.seconds == pytest.approx(0.020)
    assert not first.seen
    known(model, 1, 4, 5000, 0.040)
    shallower = found(model, 1, 1, 5000)
    assert shallower.seconds == pytest.approx(0.020, rel=0.02), "half of it, as without context"


def test_a_seed_that_was_disturbed_does_not_make_fewer_rows_dear() -> None:
    model = CostModel()
    for rows, seconds in ((1, 0.01), (2, 0.011), (4, 0.030), (8, 0.012)):
        model.seed(rows, seconds)
    assert found(model, 1, 4).seconds == pytest.approx(0.012)


def test_more_rows_than_were_ever_verified_deserve_a_try() -> None:
    """Their seeds were measured without context, where rows cost what they do not cost with it."""
    for power, expected in ((2, 0.85 * (1 + 64 / 36) / 2), (0.5, 1.0)):
        model = CostModel()
        for rows in range(1, 9):
            model.seed(rows, 0.01 * rows**power)
        known(model, 1, 6, 8000, 0.05)
        assert found(model, 1, 8, 8000).seconds == pytest.approx(0.05 * expected, rel=0.02)


def test_one_slow_first_sample_does_not_condemn_an_entry() -> None:
    model = CostModel()
    known(model, 1, 1, 8000, 0.020)
    known(model, 1, 8, 8000, 0.046)
    model.observe_verify(1, 4, 8000, 0.500)
    tried = found(model, 1, 4, 8000)
    assert tried.seconds < 0.046


def test_few_samples_are_taken_with_hope() -> None:
    few, many = CostModel(), CostModel()
    rng = np.random.default_rng(0)
    for i in range(200):
        seconds = 0.040 * (1 + 0.05 * rng.standard_normal())
        many.observe_verify(1, 4, 8000, seconds)
        if i < 5:
            few.observe_verify(1, 4, 8000, seconds)
    fewer, more = (found(model, 1, 4, 8000).seconds for model in (few, many))
    assert fewer < more < 0.040
    assert more == pytest.approx(0.040, rel=0.04)


def test_proposing_by_depth_with_rebuilds_at_their_frequency() -> None:
    model = CostModel()
    for i in range(400):
        depth, rebuilt = 1 + i % 4, i % 8 == 0
        seconds = 0.001 + 0.0005 * depth + 0.004 * rebuilt
        model.observe_propose(1, depth, seconds, chain=0.0005 * depth, rebuilt=rebuilt, shadow=0)
    assert model.propose(1, 3) == pytest.approx(0.0025 + 0.0005, rel=0.25)
    assert model.shadow(1, 1) == pytest.approx(0.0055, rel=0.01), "it rebuilds, too"
    for _ in range(5):
        model.observe_propose(1, 0, 0.0001, chain=0.0, rebuilt=False, shadow=0)
        model.observe_propose(1, 0, 0.0021, chain=0.0, rebuilt=True, shadow=1)
    assert model.propose(1, 0) == pytest.approx(0.0001)
    assert model.shadow(1, 1) == pytest.approx(0.002)


def test_proposing_where_every_step_rebuilds() -> None:
    """In a batch some working cache is due at nearly every step."""
    model = CostModel()
    for _ in range(20):
        model.observe_propose(1, 3, 0.004, chain=0.003, rebuilt=False, shadow=0)
    for _ in range(60):
        model.observe_propose(4, 3, 0.012, chain=0.008, rebuilt=True, shadow=0)
    assert model.propose(4, 3) == pytest.approx(0.012, rel=0.05)


def test_the_table_can_be_read() -> None:
    model = CostModel()
    known(model, 1, 4, 8000, 0.042)
    (row,) = model.table()
    assert (row["requests"], row["rows"], row["steps"]) == (1, 4, 60)
    assert row["y"] == pytest.approx(0.042, rel=0.02)


def test_a_change_of_pace_moves_what_is_not_seen_meanwhile() -> None:
    model = CostModel(monotonic=False)
    for _ in range(40):
        model.observe_verify(1, 1, 1000, 0.02)
        model.observe_verify(1, 4, 1000, 0.03)
        model.observe_propose(1, 3, 0.004, chain=0.003, rebuilt=False, shadow=0)
    for _ in range(200):
        model.observe_verify(1, 4, 1000, 0.06)
    assert found(model, 1, 1).seconds == pytest.approx(0.04, rel=0.1)
    assert model.propose(1, 3) == pytest.approx(0.008, rel=0.1)


def test_what_an_entry_shows_itself_counts_more_than_the_pace() -> None:
    model = CostModel(monotonic=False)
    for _ in range(6):
        model.observe_verify(1, 1, 1000, 0.028)  # it should have been 0.020
    for step in range(2560):
        model.observe_verify(1, 5, 1000, 0.03)
        if step % 128 == 0:
            model.observe_verify(1, 1, 1000, 0.02)
    assert found(model, 1, 1).seconds == pytest.approx(0.02, rel=0.15)


def test_a_longer_context_is_no_change_of_pace() -> None:
    model = CostModel()
    for _ in range(60):
        model.observe_verify(1, 5, 2000, 0.01)
        model.observe_propose(1, 4, 0.003, chain=0.002, rebuilt=False, shadow=0)
    for _ in range(100):
        model.observe_verify(1, 5, 30000, 0.06)
    assert model.propose(1, 4) == pytest.approx(0.003, rel=0.1)


def test_more_rows_say_nothing_of_fewer_where_they_were_not_seen() -> None:
    model = CostModel()
    for _ in range(30):
        model.observe_verify(1, 1, 30000, 0.04)
    for _ in range(30):
        model.observe_verify(1, 5, 2000, 0.022)
    assert found(model, 1, 1, 30000).seconds == pytest.approx(0.04, rel=0.1)


def test_something_is_known_of_any_step_as_soon_as_one_was_seen() -> None:
    model = CostModel()
    assert model.load(2, 1000).verify(3) is None
    model.observe_verify(1, 4, 1000, 0.02)
    for requests, rows in ((1, 1), (2, 2), (2, 3), (8, 40)):
        estimate = found(model, requests, rows)
        assert not estimate.seen
        assert estimate.seconds == pytest.approx(0.02)


def test_fewer_rows_are_never_taken_to_cost_more() -> None:
    costs = {}
    for monotonic in (True, False):
        model = CostModel(monotonic=monotonic)
        for _ in range(3):
            model.observe_verify(1, 1, 1000, 0.09)
        for _ in range(20):
            model.observe_verify(1, 2, 1000, 0.03)
        costs[monotonic] = found(model, 1, 1).seconds
    assert costs[True] <= 0.031
    assert costs[False] > 0.06


def test_what_cannot_be_is_not_known_and_learnt_anew() -> None:
    """Seen under a load, while more rows cost less since."""
    model = CostModel()
    for _ in range(20):
        model.observe_verify(1, 1, 1000, 0.06)
    assert found(model, 1, 1).seen
    for _ in range(10):
        model.observe_verify(1, 3, 1000, 0.03)
    assert not found(model, 1, 1).seen
    for _ in range(3):
        model.observe_verify(1, 1, 1000, 0.02)
    assert found(model, 1, 1).seen
    assert found(model, 1, 1).seconds == pytest.approx(0.02, rel=0.1)


def test_an_entry_that_does_take_more_than_larger_ones_is_believed() -> None:
    """Another kernel for few rows, say: looking at it again must not show it as new each time."""
    model, unknown = CostModel(), 0
    for step in range(400):
        model.observe_verify(1, 6, 1000, 0.017)
        if step < 12 or not found(model, 1, 1).seen:
            unknown += step > 40
            model.observe_verify(1, 1, 1000, 0.02)
    assert unknown <= 8
    model.observe_verify(1, 1, 1000, 0.02)
    assert found(model, 1, 1).seconds == pytest.approx(0.02, rel=0.05)


def test_requests_of_other_lengths_teach_a_slope() -> None:
    """They are no change of pace, however long the runs of them are."""
    model = CostModel()
    for _ in range(4):
        for context, seconds in ((2000, 0.010), (30000, 0.060)):
            for _ in range(16):
                model.observe_verify(1, 5, context, seconds)
    for context, seconds in ((2000, 0.010), (30000, 0.060)):
        assert found(model, 1, 5, context).seconds == pytest.approx(seconds, rel=0.2)


def test_an_entry_that_was_not_touched_for_long_is_doubted_and_then_forgotten() -> None:
    model = CostModel()
    for _ in range(10):
        model.observe_verify(1, 6, 1000, 0.09)
    for _ in range(STALE):
        model.observe_verify(1, 2, 1000, 0.03)
    known = found(model, 1, 6)
    model.observe_verify(1, 2, 1000, 0.03)
    doubted = found(model, 1, 6)
    assert known.seen
    assert known.seconds > 0.08
    assert not doubted.seen
    assert doubted.seconds <= 0.031
    for _ in range(3):
        model.observe_verify(1, 6, 1000, 0.04)
    assert found(model, 1, 6).seconds == pytest.approx(0.04, rel=0.1)


def test_steps_of_a_rest_count() -> None:
    model = CostModel()
    for _ in range(10):
        model.observe_verify(1, 6, 1000, 0.09)
        model.observe_verify(1, 1, 1000, 0.03)
        model.observe_propose(1, 0, 0.001, chain=0.0, rebuilt=False, shadow=0)
        model.observe_gap(0.002)
    for _ in range(STALE // 16 - 1):
        model.rested(1, 1000, 16, 0.0321, 0.0001)
    assert found(model, 1, 6).seen
    assert found(model, 1, 1).seconds == pytest.approx(0.03, rel=0.02)
    model.rested(1, 1000, 16, 0.5, 0.0001)
    assert not found(model, 1, 6).seen, "too long ago"
    assert found(model, 1, 1).seconds == pytest.approx(0.03, rel=0.05), "one long step, perhaps"
    model.rested(1, 1000, 16, 0.5, 0.0001)
    assert found(model, 1, 1).seconds == pytest.approx(0.5, rel=0.05), "it is not"


def test_not_drafting_costs_what_it_costs_to_rest() -> None:
    model = CostModel()
    for _ in range(10):
        model.observe_verify(1, 1, 1000, 0.03)
        model.observe_propose(1, 0, 0.002, chain=0.0, rebuilt=False, shadow=0)
    assert model.propose(1, 0) == pytest.approx(0.002)
    model.rested(1, 1000, 16, 0.0301, 0.0001)
    assert model.propose(1, 0) == pytest.approx(0.0001)
    # A secret draft is compared with a step that was planned, as its own is.
    assert model.idle(1) == pytest.approx(0.002)
    assert found(model, 1, 1).seconds == pytest.approx(0.03, rel=0.01)


def test_an_entry_that_is_as_it_was_is_doubted_later_the_next_time() -> None:
    model, doubted = CostModel(), []
    for step in range(4 * STALE):
        model.observe_verify(1, 2, 1000, 0.03)
        estimate = model.load(1, 1000).verify(6)
        if step < 10 or (estimate and not estimate.seen and step > 20):
            if step >= 10:
                doubted.append(step)
            for _ in range(3):
                model.observe_verify(1, 6, 1000, 0.09)
    assert len(doubted) == 2
    assert doubted[1] - doubted[0] > 1.5 * (doubted[0] - 10)
