# SPDX-License-Identifier: Apache-2.0
"""A deterministic simulator of the drafting cycle: given acceptances and costs, no engine.

It drives a real :class:`~diffspec.adaptive_depth.policy.DepthPolicy` and compares every decision
with the one of somebody who knows the true acceptances and the true costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from diffspec.adaptive_depth.acceptance import FloatArray
from diffspec.adaptive_depth.adaptive import AdaptiveDepth
from diffspec.adaptive_depth.choice import StepCost, choose, evaluate, gains_of
from diffspec.adaptive_depth.confidence import Calibration
from diffspec.adaptive_depth.early import Gate
from diffspec.adaptive_depth.policy import DepthPolicy, IntArray, StepTimes

#: (requests, verified rows, sum of context lengths) → seconds.
Verify = Callable[[int, int, int], float]


@dataclass(frozen=True)
class Machine:
    """What things cost, in seconds.

    Attributes:
        verify: of a step.
        draft: per draft step of a batch.
        upkeep: per step that drafts or shadows: projecting rows, keeping working caches.
        idle: proposing when nobody drafts.
        gap: scheduling between steps.
        stops: whether a chain can end early; elsewhere confidences are read at its end.
    """

    name: str
    verify: Verify
    draft: float
    upkeep: float
    idle: float
    gap: float
    stops: bool = False

    def under(self, load: float) -> Machine:
        """The same machine while everything takes ``load`` times as long."""
        return Machine(
            self.name,
            lambda *what: load * self.verify(*what),
            draft=load * self.draft,
            upkeep=load * self.upkeep,
            idle=load * self.idle,
            gap=load * self.gap,
            stops=self.stops,
        )

    def step(self, requests: int, context: int) -> StepCost:
        """Steps of so many requests."""

        def verify(drafted: int) -> float:
            return self.verify(requests, requests + drafted, context) + self.gap

        def propose(deepest: int) -> float:
            return self.upkeep + self.draft * deepest if deepest else self.idle

        return StepCost(verify, propose)


def _cpu(requests: int, rows: int, context: int) -> float:
    # 8-layer recall target on two cores, design section 5: a step up at the second row, then flat.
    ms = float(np.interp(rows / requests, (1, 2, 4, 6, 8), (21.7, 40.0, 42.1, 42.6, 45.5)))
    fixed = 5.5  # of it does not read the context
    return 1e-3 * (fixed + (ms - fixed) * context / 16384)


def _memory_bound(requests: int, rows: int, context: int) -> float:
    # An 8B target in half precision at 3 TB/s: weights, 128 KiB of K and V per token, little more.
    return 16e9 / 3e12 + context * 131072 / 3e12 + 4e-6 * rows


def _weight_bound(requests: int, rows: int, context: int) -> float:
    # Published target-only step times on one 910B2: 64.6 ms at 32K, 81.8 ms at 128K.
    return 1e-3 * (64.6 + (context / requests - 32768) * (81.8 - 64.6) / 98304 + 0.3 * rows)


MACHINES = (
    Machine(
        "two CPU cores", _cpu, draft=0.6e-3, upkeep=1.4e-3, idle=0.1e-3, gap=0.3e-3, stops=True
    ),
    Machine("memory-bound", _memory_bound, draft=0.5e-3, upkeep=0.4e-3, idle=0.05e-3, gap=0.4e-3),
    Machine("weight-bound", _weight_bound, draft=2.5e-3, upkeep=1.0e-3, idle=0.1e-3, gap=1.0e-3),
)


@dataclass(frozen=True)
class Phase:
    """For ``steps`` steps each request's ``a_i`` is ``first · decay^(i-1)``, and everything takes
    ``load`` times as long."""

    steps: int
    first: Sequence[float]
    decay: float = 1.0
    load: float = 1.0

    def rates(self, depth: int) -> FloatArray:
        """``[b, K]``."""
        first = np.asarray(self.first, dtype=np.float64)
        rates: FloatArray = first[:, None] * self.decay ** np.arange(depth)
        return rates


@dataclass(frozen=True)
class Confidence:
    """How tokens differ, and what the draft knows of it.

    Attributes:
        spread: 1 / (1 + pseudo counts) of the Beta distribution of a token's own acceptance around
            its average ``a_i``: near 0 all tokens are alike, near 1 each is either right or wrong.
        truth: log-odds of the confidence per log-odds of the acceptance; 0 says nothing, below 0
            the contrary.
        bias: added to the log-odds; above 0 the draft is too sure of itself.
        noise: standard deviation of what is added besides.
    """

    spread: float = 0.5
    truth: float = 1.0
    bias: float = 0.0
    noise: float = 0.5

    def draw(self, rates: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Acceptance and logarithm of the confidence, each ``[b, K]``, of a step's tokens."""
        count = 1 / self.spread - 1
        own = rng.beta(np.maximum(rates * count, 1e-3), np.maximum((1 - rates) * count, 1e-3))
        odds = np.log(np.clip(own, 1e-4, 0.9999)) - np.log(np.clip(1 - own, 1e-4, 0.9999))
        odds = self.truth * odds + self.bias + self.noise * rng.standard_normal(own.shape)
        return own, -np.log1p(np.exp(-odds))


class Blind(AdaptiveDepth):
    """The policy, if it did not ask how sure the draft is."""

    def gate(self, slots: IntArray, planned: IntArray) -> Gate:
        """One that learns nothing and cuts nothing."""
        calibration = Calibration(len(self._rates), self.limits.depth)
        rates, table = self._rates[slots], self._table[slots]
        return Gate(calibration, slots, planned, rates, table, None)


@dataclass
class Trace:
    """What happened, per step.

    Attributes:
        depths: submitted, each ``[b]``; ``planned``: planned to be drafted for that, each ``[b]``.
        took: seconds without noise; ``best``: seconds in which the clairvoyant would have made the
            tokens that were expected of the step; ``shadow``: seconds of shadow drafts in it.
        tokens: expected of the step, given each token's own acceptance.
    """

    depths: list[IntArray] = field(default_factory=list)
    planned: list[IntArray] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    shadow: list[float] = field(default_factory=list)

    def efficiency(self, first: int = 0, last: int | None = None) -> float:
        """Speed over the clairvoyant's, over some steps."""
        return sum(self.best[first:last]) / sum(self.took[first:last])

    def speed(self, first: int = 0, last: int | None = None) -> float:
        """Tokens per second, over some steps."""
        return sum(self.tokens[first:last]) / sum(self.took[first:last])

    def switches(self) -> int:
        """How often drafting as a whole stopped or began."""
        on = np.array([bool(depths.any()) for depths in self.planned])
        return int(np.count_nonzero(on[1:] != on[:-1]))


def simulate(
    policy: DepthPolicy,
    machine: Machine,
    phases: Sequence[Phase],
    *,
    depth: int,
    length: int,
    noise: float = 0.03,
    outliers: float = 0.01,
    seed: int = 0,
    confidence: Confidence | None = None,
) -> Trace:
    """Serve one batch that stays together; it rests as long as a plan lets it, as
    :class:`~diffspec.proposer.resting.Resting` has it.

    Args:
        depth: K.
        length: context length of every request at the start, tokens.
        noise: standard deviation of measured times, as a share of them.
        outliers: share of steps measured, and not really, three times as long.
        confidence: tells the policy how sure the draft is of every chain; it is not asked if None.
    """
    rng, trace = np.random.default_rng(seed), Trace()
    b = len(phases[0].first)
    slots, room = np.arange(b), np.full(b, depth)
    lengths = np.full(b, length)
    depths = planned = policy.plan(slots, lengths, room).depths
    shadows = np.zeros(b, dtype=np.int64)
    rest = 0
    rested: list[tuple[float, float]] = []
    waiting: dict[int, tuple[int, int, FloatArray]] = {}
    own: FloatArray | None = None
    unloaded = machine
    for phase in phases:
        machine = unloaded.under(phase.load)
        rates = phase.rates(depth)
        gains = gains_of(rates)
        for _ in range(phase.steps):
            context = int(lengths.sum())

            seconds = machine.step(b, context)

            # A token's own acceptance is known with its confidence, when it is drafted.
            if own is None or confidence is None:
                own = rates
            if rested and not rest:
                rest = policy.rested(slots, len(rested), *np.mean(rested, axis=0).tolist())
                rested = []
            right = np.cumprod(rng.random((b, depth)) < own, axis=1, dtype=np.int64).sum(1)
            accepted = np.minimum(right, depths)
            beyond = np.where((accepted == depths) & (depths < planned), right > depths, -1)
            if (seen := (depths > 0) | (beyond >= 0)).any():
                policy.observe(slots[seen], depths[seen], accepted[seen], beyond[seen])
            if ended := _compare(waiting, depths, rng):
                policy.observe_shadows(*np.array(ended, dtype=np.int64).T)
            lengths = lengths + accepted + 1
            now = int(depths.sum())
            verify = machine.verify(b, b + now, context)
            expected = evaluate(gains_of(own), depths, seconds).tokens
            chosen = evaluate(gains, depths, seconds)
            best = choose(gains, room, seconds)

            resting = rest > 0
            rest -= resting
            if not resting:
                plan = policy.plan(slots, lengths, room)
                depths, planned, shadows = plan.depths, plan.depths, plan.shadows.copy()
                shadows[list(waiting)] = 0  # one comparison at a time
                if not (waiting or depths.any() or shadows.any()):
                    rest = plan.rest
            deepest = int(planned.max())
            own = rates
            if confidence is not None:
                own, sure = confidence.draw(rates, rng)
                depths, deepest = _cut(policy, planned, shadows, sure, stops=machine.stops)
            for request in np.flatnonzero(shadows).tolist():
                waiting[request] = int(shadows[request]), 0, own[request]
            idle = machine.upkeep + machine.draft * deepest if deepest else machine.idle
            secret = 0.0
            if shadows.any():
                more = max(int(shadows.max()) - deepest, 0)
                secret = machine.draft * more + (0.0 if deepest else machine.upkeep)
            trace.depths.append(depths)
            trace.planned.append(planned)
            trace.tokens.append(expected)
            trace.took.append(verify + machine.gap + idle + secret)
            trace.best.append(chosen.tokens / best.rate)
            trace.shadow.append(secret)
            measured = StepTimes(
                requests=b,
                rows=b + now,
                context=context,
                decoding=True,
                verify=verify,
                propose=idle + secret,
                draft=machine.draft * deepest,
                gap=machine.gap,
                depth=deepest,
                rebuilt=False,
                shadow=int(shadows.max()),
                secrets=int(np.count_nonzero(shadows)),
            )
            factor = 3.0 if rng.random() < outliers else 1.0
            measured = replace(
                measured,
                verify=verify * factor * (1 + noise * rng.standard_normal()),
                propose=measured.propose * (1 + noise * rng.standard_normal()),
            )
            if resting:
                step_took = measured.verify + measured.propose + machine.gap
                rested.append((step_took, measured.propose))
            else:
                policy.timed(measured)
    return trace


def _cut(
    policy: DepthPolicy, planned: IntArray, shadows: IntArray, sure: FloatArray, *, stops: bool
) -> tuple[IntArray, int]:
    """Draft chains; what is submitted ``[b]``, and how deep the deepest one went."""
    chains = np.where(planned > 0, planned, shadows)
    members = np.flatnonzero(chains)
    depths, deepest = np.zeros_like(planned), int(planned.max())
    if not members.size or (gate := policy.gate(members, planned[members])) is None:
        return planned, deepest
    most = int(chains.max())
    sure = sure[members, :most]
    if stops:
        most = next((k + 1 for k in range(most) if gate.stop(sure[:, k])), most)
    depths[members] = gate.cut(np.minimum(chains[members], most), sure[:, :most])
    return depths, min(deepest, most)


def _compare(
    waiting: dict[int, tuple[int, int, FloatArray]],
    depths: IntArray,
    rng: np.random.Generator,
) -> list[tuple[int, int, int]]:
    """One step of comparing secret chains, ``request: (drafted, right so far, acceptance of each
    token)``; what has ended, as (request, drafted, accepted)."""
    ended = []
    for request, (drafted, right, rates) in list(waiting.items()):
        if depths[request]:  # it drafts in earnest: what is known counts
            del waiting[request]
            if right:
                ended.append((request, right, right))
            continue
        hit = bool(rng.random() < rates[right])
        waiting[request] = drafted, right + hit, rates
        if not hit or right + 1 == drafted:
            del waiting[request]
            ended.append((request, drafted, right + hit))
    return ended
