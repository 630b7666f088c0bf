# SPDX-License-Identifier: Apache-2.0
"""Secret drafts: whose turn it is, and what they may take together."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diffspec.adaptive_depth.adaptive import AdaptiveDepth
from diffspec.adaptive_depth.cost import CostModel
from diffspec.adaptive_depth.limits import DepthLimits
from diffspec.adaptive_depth.policy import StepTimes
from diffspec.adaptive_depth.shadow import ROUTINE, WINDOW, ShadowDrafts

ONE = np.array([0])


@settings(deadline=None, max_examples=25)
@given(
    requests=st.integers(1, 48),
    each=st.floats(0.01, 0.5),
    shared=st.floats(0.0, 1.0),
    gone=st.integers(0, 47),
)
def test_many_requests_take_turns_within_the_promised_share(
    requests: int, each: float, shared: float, gone: int
) -> None:
    """Drafts that are always wrong; costs are in steps, ``shared`` of them whoever takes part."""

    def seconds(chains: int) -> float:
        return each * (shared + (1 - shared) * chains)

    shadows, slots = ShadowDrafts(requests), np.arange(requests)
    turns, spent = np.zeros(requests), []
    for _ in range(WINDOW):
        shadows.step(1.0, 0.0)
    for step in range(12 * WINDOW):
        due = shadows.due(slots, seconds, np.ones(requests, dtype=np.int64))
        spent.append(seconds(int(due.sum())) if due.any() else 0.0)
        shadows.observe(slots[due], np.zeros(int(due.sum()), dtype=np.bool_))
        shadows.step(1.0, spent[-1])
        turns += due
        if step == gone:  # out of phase with the others
            shadows.forget(gone % requests)
    windows = np.convolve(spent, np.ones(WINDOW), "valid")
    assert windows.max() <= 0.02 * WINDOW
    if each * requests <= 8 * ROUTINE * WINDOW:  # one round fits into that many windows
        assert turns.all(), "nobody is forgotten, however much all would cost together"


def test_a_single_chain_is_affordable_after_many_were_not() -> None:
    """Sixteen together took more than the budget: that must not be believed of one."""
    model, chains = CostModel(), 16
    for _ in range(8):
        model.observe_propose(chains, 0, 0.0001, chain=0.0, rebuilt=False, shadow=0)
        model.observe_propose(chains, 0, 0.0321, chain=0.0, rebuilt=True, shadow=1, secrets=chains)
    together, alone = model.shadow(chains, 1), model.shadow(1, 1)
    assert together is not None
    assert alone is not None
    assert abs(together - 0.032) < 1e-6
    assert abs(alone - 0.002) < 1e-6
    shadows = ShadowDrafts(1)
    for _ in range(WINDOW):
        shadows.step(0.010, 0.0)
    asked = [shadows.due(ONE, lambda count: model.shadow(count, 1), ONE + 1) for _ in range(8)]
    assert np.any(asked)


def secret_drafts(prompts: bool) -> int:
    """How many secret drafts a request gets in 300 steps without drafts that pay; with ``prompts``
    the first few of them fall into steps that read a prompt and took long to ingest it."""
    policy, wrong = AdaptiveDepth(1, DepthLimits(1)), np.array([0])
    policy.seed(1, 0.010)
    depths, secret, found = wrong, wrong, 0
    for step in range(400):
        if depths[0]:
            policy.observe(ONE, depths, wrong, np.array([-1]))
        if secret[0]:
            policy.observe_shadows(ONE, secret, wrong)
        rows = 1 + int(depths[0])
        plan = policy.plan(ONE, np.array([1000 + step]), ONE + 1)
        depths, secret = plan.depths, plan.shadows
        found += int(secret[0]) if step >= 100 else 0
        reads = prompts and bool(secret[0]) and found <= 3
        propose = 0.0002 + 0.0008 * bool(secret[0]) + 0.0010 * int(depths[0]) + 0.5 * reads
        verify = 0.010 if rows == 1 else 0.015
        policy.timed(
            StepTimes(
                *(1, rows, 1000 + step, not reads, verify, propose, 0.0004, 0.0),
                *(int(depths[0]), False, int(secret[0])),
            )
        )
    return found


def test_reading_a_prompt_is_not_charged_to_secret_drafts() -> None:
    without, beside = secret_drafts(prompts=False), secret_drafts(prompts=True)
    assert without > 6
    assert beside > 0.6 * without
