# SPDX-License-Identifier: Apache-2.0
"""What a draft's own confidence says of the tokens it drafts.

Confidence is the largest probability of the draft's output distribution. What it is worth has to be
measured: a draft may be sure and wrong, and requests differ. There are three readings of it:

- it says nothing, and a token is accepted as often as its request's tokens at that position are;
- it says everything: a token is accepted as often as all requests' tokens of such a confidence are;
- it says how a token differs from its request's average: to the log-odds of the average is added by
  how much tokens of such a confidence did better than their own requests' averages said.

All three are kept, and each counts by how well it foretold what verification then did (Bayesian
model averaging with a fading memory). The last two are counted by interval of confidence; where
nothing has been seen, all three are the request's average.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diffspec.adaptive_depth.acceptance import TOGETHER, FloatArray
from diffspec.adaptive_depth.policy import IntArray

#: Upper ends of the intervals of confidence, but for the last; dense near 1, in even log-odds.
CONFIDENCES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 0.985, 0.995, 0.999)
_EDGES = np.log(CONFIDENCES)
BINS = len(CONFIDENCES) + 1
_ALL = np.arange(BINS)
#: The interval of a token whose confidence is not known.
UNKNOWN = -1
#: Trials that an interval remembers, and outcomes by which the readings are weighed.
MEMORY, JUDGED = 512, 256
#: Pseudo trials in which tokens of any confidence turned out as the averages said.
CAUTION = 8.0
#: Logarithms of the weights of the readings before anything was foretold.
PRIOR = np.log((0.5, 0.25, 0.25))
#: Chains whose confidences are remembered, of a request and of all: what the next ones will be
#: like. From ``ENOUGH`` of its own on, a request's own are meant.
OWN_CHAINS, CHAINS, ENOUGH = 32, 64, 8


def log_odds(rates: FloatArray) -> FloatArray:
    """Natural logarithm of the odds of ``rates``, each in (0, 1)."""
    odds: FloatArray = np.log(rates / (1 - rates))
    return odds


def intervals(sure: npt.NDArray[np.floating[Any]]) -> IntArray:
    """The interval of each logarithm of a confidence, 0 to :data:`BINS` - 1."""
    return np.searchsorted(_EDGES, sure)


class Calibration:
    """Acceptance by confidence, of all requests, and the confidences of recent chains.

    Args:
        slots: number of slots.
        depth: K.
    """

    def __init__(self, slots: int, depth: int) -> None:
        self._trials = np.zeros(BINS)
        self._hits = np.zeros(BINS)
        self._expected = np.zeros(BINS)
        # Logarithms of how likely each reading made what was seen, and of the same, as weights.
        self._likely = np.zeros(len(PRIOR))
        self._weights: FloatArray = np.exp(PRIOR)
        self._odds, self._shifts = np.zeros(BINS), np.zeros(BINS)
        self._at = np.arange(depth)
        # Of each slot's last chain and of its last secret one.
        self._bins = np.full((2, slots, depth), UNKNOWN, dtype=np.int64)
        self._rates = np.full((2, slots, depth), 0.5)
        self._chains = np.full((CHAINS, depth), UNKNOWN, dtype=np.int64)
        self._own = np.full((slots, OWN_CHAINS, depth), UNKNOWN, dtype=np.int64)
        self._count, self._counts = 0, np.zeros(slots, dtype=np.int64)
        # What is not learnt yet: intervals, averages, tokens tried and right.
        self._news: list[tuple[IntArray, FloatArray, IntArray, IntArray]] = []

    @property
    def known(self) -> bool:
        """Whether there were any chains."""
        return self._count > 0

    def drafted(
        self, slots: IntArray, bins: IntArray, rates: FloatArray, secret: npt.NDArray[np.bool_]
    ) -> None:
        """Chains of ``slots`` ``[m]`` have been drafted.

        Args:
            bins: ``[m, K]``, see :func:`intervals`; ``UNKNOWN`` where nothing was drafted.
            rates: ``[m, K]``, acceptance on average, as it was believed then.
            secret: ``[m]``, which of them are only compared.
        """
        plane = secret.astype(np.int64)
        self._bins[plane, slots], self._rates[plane, slots] = bins, rates
        self._own[slots, self._counts[slots] % OWN_CHAINS] = bins
        self._counts[slots] += 1
        at = (self._count + np.arange(len(bins[-CHAINS:]))) % CHAINS
        self._chains[at] = bins[-CHAINS:]
        self._count += len(at)

    def unread(self, slots: IntArray) -> None:
        """Chains of ``slots`` ``[m]`` are drafted whose confidences nobody reads."""
        self._bins[0, slots] = UNKNOWN

    def observe(
        self, slots: IntArray, drafted: IntArray, accepted: IntArray, *, secret: bool
    ) -> None:
        """Of the last chains of ``slots`` ``[m]``, ``drafted`` ``[m]`` tokens were tried and the
        first ``accepted`` ``[m]`` were right. Learnt when somebody asks, many steps at once."""
        plane = int(secret)
        bins, rates = self._bins[plane, slots], self._rates[plane, slots]
        self._news.append((bins, rates, drafted, accepted))
        self._bins[plane, slots] = UNKNOWN
        if len(self._news) == TOGETHER:
            self._learn()

    def _learn(self) -> None:
        if not self._news:
            return
        bins, rates, drafted, accepted = map(np.concatenate, zip(*self._news, strict=True))
        self._news.clear()
        tried = (self._at < np.minimum(drafted, accepted + 1)[:, None]) & (bins != UNKNOWN)
        if not tried.any():
            return
        found, believed = bins[tried], rates[tried]
        right = np.broadcast_to(self._at < accepted[:, None], tried.shape)[tried]
        self._judge(believed, found, right)
        count = np.bincount(found, minlength=BINS)
        keep = (1 - 1 / MEMORY) ** count
        self._trials = self._trials * keep + count
        self._hits = self._hits * keep + np.bincount(found[right], minlength=BINS)
        self._expected = self._expected * keep + np.bincount(found, believed, minlength=BINS)
        usual = (self._expected + 1e-3) / (self._trials + 2e-3)
        rate = (self._hits + CAUTION * usual) / (self._trials + CAUTION)
        self._odds = log_odds(rate)
        self._shifts = self._odds - log_odds(usual)

    def table(self, rates: FloatArray) -> FloatArray:
        """Acceptance of tokens of average acceptance ``rates`` ``[m, K]``, by interval of
        confidence: ``[m, K, BINS + 1]``; the last is the average itself, for ``UNKNOWN``."""
        self._learn()
        table = np.repeat(rates[..., None], BINS + 1, axis=-1)
        table[..., :-1] = np.tensordot(self._weights, self._readings(table[..., :-1], _ALL), 1)
        return table

    def scenarios(self, slots: IntArray) -> IntArray:
        """Chains as they may come next, out of the remembered ones.

        Args:
            slots: ``[b]``.

        Returns:
            ``[s, b, K]``, intervals of confidence; fewer scenarios for more requests, which
            average among themselves.
        """
        b, count = len(slots), min(self._count, CHAINS)
        if not count:
            return np.full((1, b, len(self._at)), UNKNOWN, dtype=np.int64)
        s = min(max(8, CHAINS // b), OWN_CHAINS)
        at = np.arange(s * b).reshape(s, b)
        bins: IntArray = self._chains[(self._count - 1 - at) % count]
        own = np.minimum(self._counts[slots], OWN_CHAINS)
        if (some := np.flatnonzero(own >= ENOUGH)).size:
            bins[:, some] = self._own[slots[some], np.arange(s)[:, None] % own[some]]
        return bins

    def forget(self, slot: int) -> None:
        """The request in ``slot`` has ended."""
        self._bins[:, slot] = UNKNOWN
        self._counts[slot] = 0

    def _readings(self, rates: FloatArray, bins: IntArray) -> FloatArray:
        """What each reading makes of confidences, stacked."""
        seen = (self._trials > 0)[bins]
        average = log_odds(rates)
        absolute = np.where(seen, self._odds[bins], average)
        relative = average + self._shifts[bins]
        odds = np.exp(np.stack((average, absolute, relative)))
        readings: FloatArray = odds / (1 + odds)
        return readings

    def _judge(self, rates: FloatArray, bins: IntArray, right: npt.NDArray[np.bool_]) -> None:
        foretold = self._readings(rates, bins)
        likely = np.log(np.where(right, foretold, 1 - foretold))
        self._likely = self._likely * (1 - 1 / JUDGED) ** len(bins) + likely.sum(-1)
        weights = np.exp(PRIOR + self._likely - self._likely.max())
        self._weights = weights / weights.sum()
