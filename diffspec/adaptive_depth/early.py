# SPDX-License-Identifier: Apache-2.0
"""Early stop: what of a drafted chain is submitted, and when drafting on cannot pay any more.

Once a chain is drafted its confidences are known and its drafting is paid for. A drafted token is
then worth submitting as long as its chance, with all before it, exceeds the tokens that would have
been made in the time its verification takes. The speed that this time is priced at is the one the
plan promises in the long run (the optimum of a reward per time, Dinkelbach 1967), not the one of
the step at hand: a sure chain must not be cut short because its step is fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diffspec.adaptive_depth.acceptance import FloatArray
from diffspec.adaptive_depth.choice import Choice, StepCost, gains_of, verify_times
from diffspec.adaptive_depth.confidence import UNKNOWN, Calibration, intervals
from diffspec.adaptive_depth.policy import IntArray

#: Chance of a whole chain so far above which it is not even asked whether to stop.
CLEAR = 0.35
#: Rounds in which the promised speed and the best plan at that speed are found, and how close they
#: have to come.
_ROUNDS, _AGREE = 4, 1e-3


@dataclass(frozen=True, slots=True)
class Prices:
    """What submitting costs.

    Attributes:
        verify: ``[n + 1]``, seconds of a step's verification with 0 to n drafted tokens.
        rate: tokens per second that a second is worth.
        least: what each request submits at least (where that much was drafted).
        allowed: the only depths there are, the same for all requests of a step; None for any.
    """

    verify: FloatArray
    rate: float
    least: int = 0
    allowed: tuple[int, ...] | None = None

    def submit(self, gains: FloatArray, drafted: IntArray) -> IntArray:
        """How much of each chain to submit; of equally good answers the one of fewest tokens.

        Args:
            gains: ``[s, b, K]``, chance of each token with all before it, in ``s`` scenarios.
            drafted: ``[b]``.

        Returns:
            ``[s, b]``, at most ``drafted``.
        """
        worth = self.rate * (self.verify[0] - self.verify)
        if self.allowed is not None:
            return self._uniform(gains, drafted, worth)
        s, b, depth = gains.shape
        if b == 1:
            most, least = int(drafted[0]), min(self.least, int(drafted[0]))
            net = np.zeros((s, most + 1))
            net[:, 1:] = gains[:, 0, :most].cumsum(-1) + worth[1 : most + 1]
            only: IntArray = net[:, least:].argmax(-1)[:, None] + least
            return only
        at = np.arange(depth)
        there = (at < drafted[:, None]).reshape(-1)
        must = (at < np.minimum(drafted, self.least)[:, None]).reshape(-1)
        flat = gains.reshape(s, -1)[:, there]
        order = np.argsort(-(flat + must[there]), axis=-1, kind="stable")
        net = np.take_along_axis(flat, order, -1).cumsum(-1) + worth[1 : flat.shape[1] + 1]
        net = np.concatenate((np.zeros((s, 1)), net), axis=1)
        total = net[:, (first := int(must.sum())) :].argmax(-1) + first
        chosen = np.zeros((s, b * depth), dtype=np.bool_)
        places = np.flatnonzero(there)[order]
        np.put_along_axis(chosen, places, np.arange(len(places[0])) < total[:, None], -1)
        depths: IntArray = chosen.reshape(gains.shape).sum(-1)
        return depths

    def _uniform(self, gains: FloatArray, drafted: IntArray, worth: FloatArray) -> IntArray:
        assert self.allowed is not None
        depths = np.array(sorted(d for d in self.allowed if d >= self.least), dtype=np.int64)
        cut = np.minimum(drafted, depths[:, None])
        sums = np.pad(gains.cumsum(-1), ((0, 0), (0, 0), (1, 0)))
        at = np.broadcast_to(cut.T, (len(gains), len(drafted), len(depths)))
        net = np.take_along_axis(sums, at, -1).sum(1) + worth[cut.sum(-1)]
        best: IntArray = cut[net.argmax(-1)]
        return best


@dataclass(frozen=True, slots=True)
class Outlook:
    """What to draft when chains will be cut by their confidence.

    Attributes:
        gains: ``[s, b, K]``, chance of each token with all before it, in ``s`` scenarios.
        cost: of a step.
        verify: as of :class:`Prices`.
    """

    gains: FloatArray
    cost: StepCost
    verify: FloatArray
    least: int = 0
    allowed: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        bins: IntArray,
        table: FloatArray,
        cost: StepCost,
        least: int,
        allowed: tuple[int, ...] | None,
    ) -> Outlook:
        """For chains of confidences ``bins`` ``[s, b, K]``, acceptance given them by ``table``
        ``[b, K, BINS + 1]``; see :class:`Calibration`."""
        b, depth = table.shape[:2]
        gains = np.cumprod(table[np.arange(b)[:, None], np.arange(depth), bins], axis=-1)
        return cls(gains, cost, verify_times(b, b * depth, cost), least, allowed)

    def prices(self, rate: float) -> Prices:
        """Where the promised speed is ``rate``."""
        return Prices(self.verify, rate, self.least, self.allowed)

    def evaluate(self, depths: IntArray, rate: float) -> Choice:
        """Drafting ``depths`` ``[b]`` and cutting at the speed ``rate``: what is expected of a
        step."""
        submitted = self.prices(rate).submit(self.gains, depths)
        drafted = np.arange(self.gains.shape[-1]) < submitted[..., None]
        tokens = depths.size + self.cost.others + (self.gains * drafted).sum() / len(submitted)
        seconds = self.verify[submitted.sum(-1)].mean()
        seconds += self.cost.propose(int(depths.max(initial=0)))
        return Choice(depths, float(tokens), float(seconds))

    def choose(self, caps: IntArray, rate: float) -> Choice:
        """The depths of the highest speed; ``rate`` is a first guess of it.

        A draft step costs the same for however many requests, so all are drafted equally deep, but
        none deeper than any scenario would have it submit.
        """
        if self.allowed is not None:
            options = [np.minimum(caps, limit) for limit in self.allowed if limit >= self.least]
            for _ in range(_ROUNDS):
                found = [self.evaluate(depths, rate) for depths in options]
                best = max(found, key=lambda choice: choice.tokens - rate * choice.seconds)
                rate = best.rate
            return best
        least, deepest = self.least, max(self.least, int(caps.max(initial=0)))
        limits = np.arange(least, deepest + 1)
        tokens, verify, must = self._sums(caps, limits)
        propose = np.array([self.cost.propose(limit) for limit in limits.tolist()])
        for _ in range(_ROUNDS):
            at = (tokens - rate * verify)[..., must:].argmax(-1)[..., None] + must
            expected = np.take_along_axis(tokens, at, -1).mean((1, 2))
            seconds = np.take_along_axis(verify, at, -1).mean((1, 2)) + propose
            best_at = int((expected - rate * seconds).argmax())
            before, rate = rate, float(expected[best_at] / seconds[best_at])
            if abs(rate - before) < _AGREE * before:
                break
        depths = np.minimum(caps, limits[best_at])
        most = self.prices(rate).submit(self.gains, depths).max(0)
        return Choice(most, float(expected[best_at]), float(seconds[best_at]))

    def _sums(self, caps: IntArray, limits: IntArray) -> tuple[FloatArray, FloatArray, int]:
        """Tokens expected and seconds of verification ``[limits, s, n + 1]`` where the best 0 to
        n drafted tokens are submitted that lie within a limit, and how many must be."""
        s, b, depth = self.gains.shape
        at = np.arange(depth)
        there = (at < caps[:, None]).reshape(-1)
        must = (at < np.minimum(caps, self.least)[:, None]).reshape(-1)[there]
        gains = self.gains.reshape(s, -1)[:, there]
        position = np.tile(at, b)[there]
        if b > 1:
            order = np.argsort(-(gains + must), axis=-1, kind="stable")
            gains, position = np.take_along_axis(gains, order, -1), position[order]
        within = position < limits[:, None, None]
        shape = (len(limits), s, gains.shape[1] + 1)
        tokens, rows = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        np.cumsum(gains * within, axis=-1, out=tokens[..., 1:])
        np.cumsum(np.broadcast_to(within, (*shape[:2], shape[2] - 1)), axis=-1, out=rows[..., 1:])
        return tokens + b + self.cost.others, self.verify[rows], int(must.sum())


class Gate:
    """Follows the chains of one step.

    Args:
        slots: ``[m]``.
        planned: ``[m]``, tokens drafted in the hope of submission; 0 for a secret chain.
        rates: ``[m, K]``, acceptance on average.
        table: ``[m, K, BINS + 1]``, acceptance given the confidence; see :class:`Calibration`.
        prices: None to cut nothing.
    """

    def __init__(
        self,
        calibration: Calibration,
        slots: IntArray,
        planned: IntArray,
        rates: FloatArray,
        table: FloatArray,
        prices: Prices | None,
    ) -> None:
        self._calibration, self._slots, self._planned = calibration, slots, planned
        self._rates, self._table, self._prices = rates, table, prices
        self._rows = np.arange(len(slots))
        self._may_stop = prices is not None and bool(planned.all()) and prices.allowed is None
        self._gains: list[FloatArray] = []

    def stop(self, sure: npt.NDArray[np.floating[Any]]) -> bool:
        """Whether no confidence whatever of the tokens to come could get one of them submitted.

        To be asked after every draft step, or never. What is submitted is the same either way.

        Args:
            sure: ``[m]``, logarithm of the confidence of the step's tokens; anything for a request
                that is not drafted any more.
        """
        if not self._may_stop:
            return False
        assert self._prices is not None
        done = len(self._gains) + 1
        gain: FloatArray = self._table[:, done - 1][self._rows, intervals(sure)]
        if self._gains:
            gain *= self._gains[-1]
        self._gains.append(gain)
        if gain.max() > CLEAR or done < self._prices.least or not (self._planned > done).any():
            return False
        ahead = gain[:, None] * gains_of(self._table[:, done:].max(-1))
        gains = np.concatenate((np.stack(self._gains, axis=1), ahead), axis=1)
        return int(self._prices.submit(gains[None], self._planned).max()) <= done

    def cut(self, drafted: IntArray, sure: npt.NDArray[np.floating[Any]]) -> IntArray:
        """How many tokens ``[m]`` of each chain to submit; 0 of a secret one.

        Args:
            drafted: ``[m]``, tokens in each chain.
            sure: ``[m, k]``, logarithms of their confidences; anything past a chain's end.
        """
        at = np.arange(self._rates.shape[1])
        bins = np.full(self._rates.shape, UNKNOWN, dtype=np.int64)
        bins[:, : sure.shape[1]] = intervals(sure)
        bins[at >= drafted[:, None]] = UNKNOWN
        earnest = self._planned > 0
        self._calibration.drafted(self._slots, bins, self._rates, ~earnest)
        if self._prices is None or not earnest.any():
            return np.where(earnest, drafted, 0)
        gains = gains_of(self._table[self._rows[:, None], at, bins])
        submitted: IntArray = self._prices.submit(gains[None], np.where(earnest, drafted, 0))[0]
        return submitted
