# SPDX-License-Identifier: Apache-2.0
"""Confidence, what it is worth, and what is submitted, against answers worked out otherwise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffspec.adaptive_depth.choice import StepCost, choose, gains_of
from diffspec.adaptive_depth.confidence import BINS, CONFIDENCES, UNKNOWN, Calibration, intervals
from diffspec.adaptive_depth.early import Gate, Outlook, Prices
from diffspec.proposer.head import DraftHead
from tests.unit import tiny_draft as tiny
from tests.unit.serving import Shape
from tests.unit.test_cycle import Serving

K = 5
NOT_SECRET = np.array([False])


# -- how sure the draft is --


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_confidence_is_the_largest_probability(dtype: torch.dtype) -> None:
    parts = tiny.TinyDraft(0).parts(lambda name: None)
    hidden = torch.randn(6, tiny.HIDDEN, generator=torch.Generator().manual_seed(0))
    logits = parts.logits(hidden)
    head = DraftHead(parts)
    object.__setattr__(parts, "logits", lambda x: logits.to(dtype))
    sure: list[torch.Tensor] = []
    tokens = head.best_tokens(hidden, sure)
    assert torch.equal(tokens, head.best_tokens(hidden))
    wanted = torch.softmax(logits.to(dtype).double(), -1).amax(-1).log()
    assert sure[0].dtype == torch.float32
    torch.testing.assert_close(
        sure[0].double(), wanted, atol=1e-5 if dtype == torch.float32 else 0.03, rtol=0
    )


def test_intervals_of_confidence() -> None:
    sure = np.log([0.05, 0.5001, 0.9999, *CONFIDENCES])
    assert intervals(sure).tolist() == [0, 4, BINS - 1, *range(BINS - 1)]
    assert intervals(np.array([-np.inf, 0.0])).tolist() == [0, BINS - 1]


def test_confidences_of_a_chain_come_with_its_tokens() -> None:
    """As the naive head finds them, for chains of different depths, secret ones among them."""
    serving = Serving(Shape(depth=4, slots=4))
    policy = serving.host.policy
    policy.by_slot, policy.submit_by_slot = np.array([4, 2, 0, 3]), np.array([4, 4, 4, 1])
    policy.shadow_by_slot[2] = 3
    requests = serving.prefilled(40, 30, 20, 50)
    drafts = [r.drafts for r in requests]
    assert [len(d) for d in drafts] == [4, 2, 0, 1]
    drafts[2] = serving.host.cycle.slots.shadows[2].chain
    (sure,) = policy.sure
    assert sure.shape == (4, 4)
    for row, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
        wanted = serving.oracle.confidences(request, draft)
        np.testing.assert_allclose(sure[row, : len(draft)], wanted, atol=1e-4)


def test_drafting_stops_when_it_is_told_to_and_submits_the_same() -> None:
    depths = {}
    for stops in (False, True):
        serving = Serving(Shape(depth=4, slots=2))
        policy = serving.host.policy
        policy.submit_by_slot, policy.stops = np.array([1, 2]), stops
        one, two = serving.join(40), serving.join(30)
        serving.host.step([(one, 40), (two, 30)])
        depths[stops] = [one.drafts, two.drafts], policy.sure[-1].shape[1]
    assert depths[True][0] == depths[False][0]
    assert [depths[s][1] for s in (False, True)] == [4, 2]


# -- what it is worth --


def read(calibration: Calibration, rate: float, *bins: int) -> np.ndarray:
    """Acceptance of tokens of a confidence, of a request with that average."""
    table = calibration.table(np.full((1, K), rate))
    found: np.ndarray = table[0, 0, list(bins)]
    return found


def told(calibration: Calibration, rate: float, bins: np.ndarray, accepted: int) -> None:
    slots, padded = np.array([0]), np.full((1, K), UNKNOWN)
    padded[0, : len(bins)] = bins
    calibration.drafted(slots, padded, np.full((1, K), rate), NOT_SECRET)
    calibration.observe(slots, np.array([len(bins)]), np.array([accepted]), secret=False)


def test_nothing_is_made_of_what_was_not_seen() -> None:
    calibration = Calibration(1, K)
    for rate in (0.3, 0.6):
        assert read(calibration, rate, *range(UNKNOWN, BINS)) == pytest.approx(rate)
    told(calibration, 0.5, np.array([3]), 1)
    assert read(calibration, 0.5, UNKNOWN, 2, 4) == pytest.approx(0.5)
    assert 0.5 < read(calibration, 0.5, 3) < 0.55, "one trial is next to nothing"


def test_acceptance_by_confidence_is_learnt() -> None:
    """Bayes: the true acceptance in each interval, whatever the average was believed to be."""
    rng, calibration = np.random.default_rng(0), Calibration(1, K)
    truth = np.linspace(0.05, 0.95, BINS)
    for _ in range(4000):
        bins = rng.integers(0, BINS, K)
        right = int(np.cumprod(rng.random(K) < truth[bins]).sum())
        told(calibration, 0.5, bins, right)
    found = read(calibration, 0.5, *range(BINS))
    np.testing.assert_allclose(found, truth, atol=0.1)
    assert np.abs(found - truth).mean() < 0.04


def test_a_confidence_that_the_average_explains_adds_nothing() -> None:
    """One request is always sure and mostly right, another never and mostly wrong."""
    rng, calibration = np.random.default_rng(1), Calibration(1, K)
    pairs = ((0.9, BINS - 1), (0.1, 0))
    for _ in range(1500):
        for rate, bin_ in pairs:
            told(calibration, rate, np.array([bin_]), int(rng.random() < rate))
    for rate, bin_ in pairs:
        assert read(calibration, rate, bin_) == pytest.approx(rate, abs=0.04)


def test_a_confidence_that_says_nothing_leaves_each_request_its_average() -> None:
    rng, calibration = np.random.default_rng(4), Calibration(1, K)
    for _ in range(1500):
        for rate in (0.9, 0.1):
            told(calibration, rate, rng.integers(0, BINS, 1), int(rng.random() < rate))
    for rate in (0.9, 0.1):
        assert read(calibration, rate, *range(BINS)) == pytest.approx(rate, abs=0.1)


def test_a_confidence_that_says_everything_overrules_the_averages() -> None:
    """Each token is right as often as it says, in requests that differ in how often they say so."""
    rng, calibration = np.random.default_rng(5), Calibration(1, K)
    for _ in range(2000):
        for rate in (0.8, 0.2):
            sure = rng.random() < rate
            told(calibration, rate, np.array([BINS - 1 if sure else 0]), int(sure))
    for rate in (0.8, 0.2):
        low, high = read(calibration, rate, 0, BINS - 1)
        assert low < 0.1
        assert high > 0.9


def test_a_draft_that_is_sure_and_wrong() -> None:
    rng, calibration = np.random.default_rng(2), Calibration(1, K)
    for _ in range(1500):
        sure = rng.random() < 0.5
        told(calibration, 0.5, np.array([BINS - 1 if sure else 2]), int(rng.random() > sure * 0.8))
    low, high = read(calibration, 0.5, BINS - 1, 2)
    assert low < 0.3
    assert high > 0.9


def test_only_tokens_that_were_tried_count() -> None:
    calibration = Calibration(1, K)
    for _ in range(200):
        told(calibration, 0.5, np.array([1, 2, 3, 4, 5]), 1)
    found = read(calibration, 0.5, *range(BINS))
    assert found[1] > 0.85
    assert found[2] < 0.15
    assert found[3:] == pytest.approx(0.5)


# -- what is submitted --


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Prices]:
    b, depth = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    unit = st.floats(0.02, 0.98)
    rates = np.array([[draw(unit) for _ in range(depth)] for _ in range(b)])
    drafted = np.array([draw(st.integers(0, depth)) for _ in range(b)])
    verify = np.array([draw(st.floats(0.5, 5)) for _ in range(b * depth + 1)])
    least = draw(st.sampled_from([0, 0, 1]))
    allowed = draw(st.sampled_from([None, None, (0, depth)]))
    return gains_of(rates), drafted, Prices(verify, draw(st.floats(0, 2)), least, allowed)


def worth(gains: np.ndarray, depths: tuple[int, ...], prices: Prices) -> float:
    tokens = sum(float(row[:d].sum()) for row, d in zip(gains, depths, strict=True))
    return tokens - prices.rate * float(prices.verify[sum(depths)])


@settings(deadline=None, max_examples=300)
@given(problems())
def test_no_other_submission_is_worth_more(
    problem: tuple[np.ndarray, np.ndarray, Prices],
) -> None:
    gains, drafted, prices = problem
    (found,) = prices.submit(gains[None], drafted)
    assert (found <= drafted).all()
    if prices.allowed is not None:
        depths = [d for d in prices.allowed if d >= prices.least]
        options = [tuple(np.minimum(drafted, d).tolist()) for d in depths]
    else:
        assert (found >= np.minimum(drafted, prices.least)).all()
        low = np.minimum(drafted, prices.least)
        ranges = (range(a, z + 1) for a, z in zip(low, drafted, strict=True))
        options = list(itertools.product(*ranges))
    best = max(worth(gains, depths, prices) for depths in options)
    assert worth(gains, tuple(found.tolist()), prices) == pytest.approx(best)


def trained(seed: int) -> Calibration:
    rng, calibration = np.random.default_rng(seed), Calibration(3, 4)
    slots = np.arange(3)
    for _ in range(40):
        bins = rng.integers(0, BINS, (3, 4))
        calibration.drafted(slots, bins, np.full((3, 4), 0.5), np.zeros(3, dtype=np.bool_))
        right = np.cumprod(rng.random((3, 4)) < bins / BINS, axis=1).sum(1)
        calibration.observe(slots, np.full(3, 4), right, secret=False)
    return calibration


@settings(deadline=None, max_examples=300)
@given(problems(), st.integers(0, 10**6))
def test_stopping_early_never_changes_what_is_submitted(
    problem: tuple[np.ndarray, np.ndarray, Prices], seed: int
) -> None:
    _, planned, prices = problem
    planned = np.maximum(planned, 1)
    b, rng = len(planned), np.random.default_rng(seed)
    depth = (len(prices.verify) - 1) // b
    calibration = trained(seed % 7)
    rates = rng.uniform(0.02, 0.98, (b, depth))
    sure = np.log(rng.random((b, depth)))
    slots = np.arange(b)
    for name in ("_bins", "_rates", "_chains", "_own"):
        setattr(calibration, name, getattr(calibration, name)[..., :depth])
    table = calibration.table(rates)
    whole = Gate(calibration, slots, planned, rates, table, prices)
    wanted = whole.cut(planned, sure[:, : planned.max()])
    gate, step = Gate(calibration, slots, planned, rates, table, prices), 0
    for step in range(int(planned.max())):
        if gate.stop(sure[:, step]):
            break
    found = gate.cut(np.minimum(planned, step + 1), sure[:, : step + 1])
    assert found.tolist() == wanted.tolist()


def test_a_hopeless_start_stops_the_chain() -> None:
    calibration = Calibration(1, K)
    prices = Prices(1.0 + 0.2 * np.arange(K + 1), rate=1.0)
    rates = np.full((1, K), 0.05)
    table = calibration.table(rates)
    gate = Gate(calibration, np.array([0]), np.array([K]), rates, table, prices)
    assert gate.stop(np.log([0.5]))
    assert gate.cut(np.array([1]), np.log([[0.5]])).tolist() == [0]
    gate = Gate(calibration, np.array([0]), np.array([K]), rates, table, None)
    assert not gate.stop(np.log([0.5]))
    assert gate.cut(np.array([1]), np.log([[0.5]])).tolist() == [1]


# -- what is drafted --


def outlook_of(calibration: Calibration, rates: np.ndarray, cost: StepCost) -> Outlook:
    bins = calibration.scenarios(np.arange(len(rates)))
    return Outlook.of(bins, calibration.table(rates), cost, 0, None)


def test_without_confidences_the_outlook_is_the_choice_from_averages() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        b = int(rng.integers(1, 4))
        rates = rng.uniform(0.05, 0.98, (b, K))
        per_token, per_step = rng.uniform(0, 0.5), rng.uniform(0, 0.2)
        cost = StepCost(
            lambda drafted, x=per_token: 1 + x * drafted,  # type: ignore[misc]
            lambda deepest, y=per_step: y * deepest,  # type: ignore[misc]
        )
        caps = np.full(b, K)
        outlook = outlook_of(Calibration(b, K), rates, cost)
        found = outlook.choose(caps, b / cost(0, 0))
        wanted = choose(gains_of(rates), caps, cost)
        assert found.rate == pytest.approx(wanted.rate, rel=2e-3)


def test_sure_chains_make_drafting_pay_where_the_average_does_not() -> None:
    """Half of all chains are right and say so; the other half is wrong and says so."""
    calibration = Calibration(1, K)
    for step in range(400):
        good = step % 2
        told(calibration, 0.5, np.full(K, BINS - 1 if good else 0), K if good else 0)
    # A second row costs as much again as the first, further rows nothing: two tokens are needed.
    cost = StepCost(lambda drafted: 1.0 + 1.4 * (drafted > 0), lambda deepest: 0.02 * deepest)
    rates, caps = np.full((1, K), 0.5), np.array([K])
    assert choose(gains_of(rates), caps, cost).depths.tolist() == [0]
    found = outlook_of(calibration, rates, cost).choose(caps, 1.0)
    assert found.depths.tolist() == [K]
    # Half of the steps make 6 tokens in 2.4, the other half 1 in 1; 0.1 of drafting is in each.
    assert found.rate == pytest.approx(3.5 / 1.8, rel=0.05)
