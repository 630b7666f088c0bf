# SPDX-License-Identifier: Apache-2.0
"""The depth policy: as deep as pays for each request, nothing where nothing pays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from diffspec.adaptive_depth.acceptance import FIRST_GUESS, AcceptanceStatistics, FloatArray
from diffspec.adaptive_depth.choice import (
    Choice,
    StepCost,
    break_even,
    choose,
    choose_uniform,
    evaluate,
    gains_of,
)
from diffspec.adaptive_depth.confidence import Calibration
from diffspec.adaptive_depth.cost import CostModel
from diffspec.adaptive_depth.early import Gate, Outlook, Prices
from diffspec.adaptive_depth.limits import DepthLimits
from diffspec.adaptive_depth.policy import IntArray, Plan, StepTimes
from diffspec.adaptive_depth.shadow import ShadowDrafts
from diffspec.adaptive_depth.standing import Standing

#: By how much another choice must promise to be better before it is taken: between depths, and
#: for drafting at all after not drafting.
SWITCH, RESUME = 1.01, 1.03
#: A request is new until it has tried so many first positions.
NEW = 4
#: Steps between two looks at a step without drafts that is not known, and at one that is.
LOOK, LOOK_AGAIN = 4, 256
#: How much faster drafting may promise to be before looks at what is not known are put off: by the
#: fourth power of what is beyond.
EVIDENT = 1.5
#: Where no confidence could get a token cut and all drafts were right in the last step, the draft's
#: confidences are read once in so many steps.
GLANCE = 8
#: After :data:`LOOK_AGAIN` steps without drafts drafting is tried if it promises at least this
#: share of the speed without: what a verification costs may have changed since.
NEARLY = 0.85
#: Steps without drafts after which what is known of drafting steps is doubted: it may come from a
#: slow spell.
AGE = 1024
#: Steps after which drafts that are all right are tried deeper than is known to pay, twice as many
#: each time, up to :data:`AGE`: the few steps that told may all have been unlucky ones.
DEEPER = 32
#: Acceptance of a first token from which shadow drafts are whole chains.
CHAIN_FROM = 0.35


class AdaptiveDepth:
    """Maximises expected tokens per second; see :mod:`diffspec.adaptive_depth.choice`.

    Args:
        slots: number of slots.
        limits: bounds of the choice.

    Attributes:
        acceptance: what is known of the drafts.
        cost: what is known of step times.
        calibration: what the draft's confidence is worth.
    """

    def __init__(self, slots: int, limits: DepthLimits) -> None:
        self.limits = limits
        self.acceptance = AcceptanceStatistics(slots, limits.depth)
        self.cost = CostModel(monotonic=limits.allowed is None)
        self.calibration = Calibration(slots, limits.depth)
        # Acceptance as of the last plan, on average and given the confidence, and what submitting
        # costs; None to cut nothing.
        self._rates = np.full((slots, limits.depth), FIRST_GUESS)
        self._table = self.calibration.table(self._rates)
        self._prices: Prices | None = None
        self._promised = 0.0
        # Whether no confidence could get anything cut of what was planned, and whether all drafts
        # were right in the last step.
        self._uncut = self._right = False
        self.shadows = ShadowDrafts(slots)
        self._last = np.full(slots, -1, dtype=np.int64)
        self._steps = self._looked = self._tried = self._aged = 0
        self._deeper_at = self._deeper_in = DEEPER
        # Whether the last step only decoded: others teach nothing about costs.
        self._decoding = False
        # Sum of the lengths of those last planned for.
        self._context = 0
        self._standing = Standing()

    def observe(
        self, slots: IntArray, drafted: IntArray, accepted: IntArray, beyond: IntArray
    ) -> None:
        """See :meth:`DepthPolicy.observe`."""
        tried, right = drafted + (beyond >= 0), accepted + (beyond > 0)
        self._right = np.array_equal(right, tried)
        self.acceptance.observe(slots, tried, right)
        self.calibration.observe(slots, tried, right, secret=False)
        self._standing.news()

    def gate(self, slots: IntArray, planned: IntArray) -> Gate | None:
        """See :meth:`DepthPolicy.gate`."""
        if self._certain and self._steps % GLANCE and planned.all():
            self.calibration.unread(slots)
            return None
        rates, table = self._rates[slots], self._table[slots]
        return Gate(self.calibration, slots, planned, rates, table, self._prices)

    def observe_shadows(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """See :meth:`DepthPolicy.observe_shadows`."""
        self.acceptance.observe(slots, drafted, accepted)
        self.calibration.observe(slots, drafted, accepted, secret=True)
        self.shadows.observe(slots, accepted > 0)
        self._standing.news()

    def timed(self, times: StepTimes) -> None:
        """See :meth:`DepthPolicy.timed`."""
        cost = self.cost
        self._decoding = times.decoding
        if times.decoding:
            cost.observe_verify(times.requests, times.rows, times.context, times.verify)
            cost.observe_propose(
                times.requests,
                times.depth,
                times.propose,
                chain=times.draft,
                rebuilt=times.rebuilt,
                shadow=times.shadow,
                secrets=times.secrets,
            )
        if times.gap is not None:
            cost.observe_gap(times.gap)
        spent = 0.0
        if times.shadow and times.depth == 0 and times.decoding:
            spent = max(0.0, times.propose - cost.idle(times.requests))
        elif times.shadow:  # what proposing took is theirs in part: there is a prompt, or drafts
            spent = self.shadows.cost(cost.shadow(times.secrets, times.shadow))
        self.shadows.step(times.verify + times.propose + (times.gap or 0.0), spent)

    def rested(self, slots: IntArray, steps: int, seconds: float, propose: float) -> int:
        """See :meth:`DepthPolicy.rested`."""
        self._steps += steps
        self._looked = self._steps
        self.cost.rested(len(slots), self._context, steps, seconds, propose)
        self._context += steps * len(slots)
        self.shadows.rested(slots, steps, seconds)
        self._standing.rested(steps, seconds)
        if self.limits.drafts:
            most = int(self._wanted(slots).max())
            self.shadows.wait_on(slots, partial(self.cost.shadow, depth=most))
        return self._rest(slots, self._steps + 1)

    def seed(self, rows: int, seconds: float) -> None:
        """See :meth:`DepthPolicy.seed`."""
        self.cost.seed(rows, seconds)

    def forget(self, slot: int) -> None:
        """See :meth:`DepthPolicy.forget`."""
        self.acceptance.forget(slot)
        self.shadows.forget(slot)
        self.calibration.forget(slot)
        self._last[slot] = -1
        self._right = False
        self._standing.forget()

    def plan(
        self,
        slots: IntArray,
        lengths: IntArray,
        room: IntArray,
        *,
        others: int = 0,
        others_context: int = 0,
    ) -> Plan:
        """See :meth:`DepthPolicy.plan`."""
        none = np.zeros(len(slots), dtype=np.int64)
        if not len(slots):
            return Plan(none, none)
        self._steps += 1
        self._context = int(lengths.sum())
        if self._standing.pauses(slots, step=self._steps):
            return self._done(slots, none, room)
        held = self._standing.held(slots, room, step=self._steps, calm=self._certain)
        if held is not None:
            return self._plan_of(slots, held, room)
        caps = self.limits.caps(lengths, room, self.acceptance.seen[slots] < NEW)
        load = len(slots) + others, self._context + others_context
        self._rates[slots] = rates = self.acceptance.rates(slots)
        self._table[slots] = self.calibration.table(rates)
        certain, self._prices, self._uncut = self._certain, None, False
        if (cost := self._cost(*load, others)) is None:
            return self._done(slots, caps, room)
        if self._steps - self._aged >= AGE:
            self._aged = self._steps
            self.cost.age()
        elif certain and self._steps >= self._deeper_at and (self._last[slots] < caps).any():
            self._deeper_in = min(2 * self._deeper_in, AGE)
            self._deeper_at = self._steps + self._deeper_in
            self.cost.age()
        gains = gains_of(rates)
        zero = evaluate(gains, none, cost)
        if self._hopeless(slots, cost, zero):
            self._standing.pause(slots, step=self._steps, seconds=zero.seconds, hopeless=True)
            return self._done(slots, none, room)
        outlook = self._outlook(slots, cost)
        choice = self._choose(slots, gains, caps, cost, zero, outlook)
        if self._must_look(cost, choice, zero):
            self._looked = self._steps
            self._standing.drop()
            return Plan(np.zeros_like(caps), none, measuring=True)
        # Drafting that is known to be worse is tried for what its verification costs.
        if choice.depths.any() and (self.limits.least or choice.rate >= zero.rate):
            self._prices = prices = outlook.prices(choice.rate)
            worst = gains_of(self._table[slots].min(-1))[None]
            self._uncut = np.array_equal(prices.submit(worst, choice.depths)[0], choice.depths)
        if not choice.depths.any():
            self._standing.pause(slots, step=self._steps, seconds=zero.seconds, hopeless=False)
        return self._done(slots, choice.depths, room)

    def gauges(self, requests: int, context: int) -> Mapping[str, float]:
        """See :meth:`DepthPolicy.gauges`."""
        first = float(self.acceptance.process_rates()[0])
        return {"acceptance_first": first, "break_even": self.break_even(requests, context)}

    def break_even(self, requests: int, context: int) -> float:
        """Acceptance per token from which drafting beats not drafting; NaN until steps with and
        without drafts were measured near here.

        Args:
            requests: in a step.
            context: sum of their lengths, tokens.
        """
        limits, cost = self.limits, self._cost(requests, context)
        if cost is None or not self.cost.compares(requests, context):
            return float("nan")
        depths = limits.allowed or range(1, limits.depth + 1)
        return break_even(cost, requests, [d for d in depths if d >= max(1, limits.least)])

    # Steps of a plan.

    def _cost(self, requests: int, context: int, others: int = 0) -> StepCost | None:
        """What steps of so many requests cost, ``others`` of which draft nothing; None if nothing
        at all is known of that."""
        load, gap = self.cost.load(requests, context), self.cost.gap()
        if (without := load.verify(requests)) is None:
            return None

        def verify(drafted: int) -> float:
            estimate = load.verify(requests + drafted)
            assert estimate is not None  # as above: something is known of these requests
            return estimate.seconds + gap

        return StepCost(verify, partial(self.cost.propose, requests), others, without.seen)

    def _outlook(self, slots: IntArray, cost: StepCost) -> Outlook:
        bins, limits = self.calibration.scenarios(slots), self.limits
        return Outlook.of(bins, self._table[slots], cost, limits.least, limits.allowed)

    def _choose(
        self,
        slots: IntArray,
        gains: FloatArray,
        caps: IntArray,
        cost: StepCost,
        zero: Choice,
        outlook: Outlook,
    ) -> Choice:
        limits, cuts = self.limits, self.calibration.known
        if cuts:
            promised = self._promised if self._promised > zero.rate else zero.rate
            best = outlook.choose(caps, promised)
            self._promised = best.rate
        elif limits.allowed is None:
            best = choose(gains, caps, cost, least=limits.least)
        else:
            best = choose_uniform(gains, caps, cost, limits.allowed)
        last = self._last[slots]
        if last.max() <= 0:  # nobody drafts, and some may be new
            if limits.least or best.rate > RESUME * zero.rate:
                return best
            return self._try_again(gains, caps, cost, zero) or zero
        if limits.allowed is not None:  # the depth is the batch's
            last = np.full_like(last, last.max())
        elif last.min() < 0:  # the others go on as they did, with what is best for the new ones
            last = np.where(last < 0, best.depths, last)
        last = np.minimum(last, caps)
        held = outlook.evaluate(last, best.rate) if cuts else evaluate(gains, last, cost)
        if best.depths.any() and best.rate < SWITCH * held.rate and held.rate >= zero.rate:
            return held
        return best

    def _try_again(
        self, gains: FloatArray, caps: IntArray, cost: StepCost, zero: Choice
    ) -> Choice | None:
        """Drafting that is a little worse than not drafting, as far as is known: now and then it
        is done for a step, because what a verification costs may have changed."""
        if self._steps - self._tried < LOOK_AGAIN:
            return None
        self._tried = self._steps
        depths = self.limits.allowed or range(1, self.limits.depth + 1)
        if not (positive := tuple(d for d in depths if d)):
            return None
        best = choose_uniform(gains, caps, cost, positive)
        more = cost.propose(int(best.depths.max())) - cost.propose(0)
        if best.tokens < RESUME * zero.rate * (zero.seconds + more):
            return None  # not even if verifying its tokens took no time
        return best if best.rate >= NEARLY * zero.rate else None

    def _hopeless(self, slots: IntArray, cost: StepCost, zero: Choice) -> bool:
        """Whether drafting would not even be tried if all tokens that the surest draft could get
        accepted came in the time of the fewest."""
        depths = [depth for depth in self.limits.allowed or (1,) if depth]
        if self.limits.least or not depths:
            return not depths
        more = float(gains_of(self._table[slots].max(-1)).sum())
        drafted = 1 if self.limits.allowed is None else len(slots) * min(depths)
        return (zero.tokens + more) / cost(drafted, min(depths)) < NEARLY * zero.rate

    @property
    def _certain(self) -> bool:
        """Whether there is nothing to learn for the moment: all drafts are right, and no doubt of
        the draft's would change anything."""
        return self._uncut and self._right

    def _rest(self, slots: IntArray, step: int) -> int:
        """Steps from ``step`` on, which nobody has asked about yet, until a look at these paused
        requests is due, or a secret draft of theirs."""
        if not self.limits.drafts:  # nothing to find out
            return LOOK_AGAIN
        return max(0, min(self._standing.look_in(step), self.shadows.until_due(slots)))

    def _must_look(self, cost: StepCost, choice: Choice, zero: Choice) -> bool:
        """Whether this step should draft nothing, only to see what that costs."""
        if self.limits.least or not choice.depths.any() or not self._decoding:
            return False
        if self.limits.allowed is not None and 0 not in self.limits.allowed:
            return False
        unknown = LOOK * max(1.0, choice.rate / (EVIDENT * zero.rate)) ** 4
        wait = LOOK_AGAIN if cost.known else min(unknown, LOOK_AGAIN)
        return self._steps - self._looked >= wait

    def _wanted(self, slots: IntArray) -> IntArray:
        """Tokens ``[m]`` of a secret draft: where a first one is often right, those further on may
        be right, too."""
        first = self.acceptance.rates(slots)[:, 0]
        wanted: IntArray = np.where(first >= CHAIN_FROM, self.limits.depth, 1)
        return wanted

    def _done(self, slots: IntArray, depths: IntArray, room: IntArray) -> Plan:
        self._last[slots] = depths
        self._standing.take(slots, depths, step=self._steps, calm=self._certain)
        return self._plan_of(slots, depths, room)

    def _plan_of(self, slots: IntArray, depths: IntArray, room: IntArray) -> Plan:
        """The plan of these ``depths``: those who draft nothing may draft in secret, or rest."""
        idle = depths == 0
        if not idle.all():
            self._tried = self._aged = self._steps
        else:  # it shows what a step without drafts costs
            self._looked = self._steps
        shadows = np.zeros_like(depths)
        self.shadows.drafting(slots[~idle])
        if not idle.any():
            return Plan(depths, shadows)
        if idle.all() and (rest := self._rest(slots, self._steps)) > 0:
            self.shadows.rested(slots, 1)
            return Plan(depths, shadows, rest=rest - 1)
        wanted = self._wanted(slots[idle])
        seconds = partial(self.cost.shadow, depth=int(wanted.max()))
        due = self.shadows.due(slots[idle], seconds, wanted)
        shadows[idle] = np.where(due, wanted, 0)
        # Where they were refused the next ones are due later.
        over = bool(shadows.any()) or not idle.all()
        rest = 0 if over else self._rest(slots, self._steps + 1)
        return Plan(depths, np.minimum(shadows, room), rest=rest)
