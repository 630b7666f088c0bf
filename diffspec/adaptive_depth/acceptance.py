# SPDX-License-Identifier: Apache-2.0
"""How often drafted tokens are accepted: per request and position, with a prior from all requests.

Decisions use the conditional acceptance, ``a_i``: position i is accepted, among the steps that
drafted i and accepted everything before it. Reports use the unconditional one, which vLLM counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diffspec.adaptive_depth.policy import IntArray

FloatArray = npt.NDArray[np.float64]

#: Trials a request remembers, and the process.
MEMORY, PROCESS_MEMORY = 64, 512
#: Pseudo trials with which the prior enters a request that has none of its own, and how many
#: trials halve that. A little always stays: no estimate is exactly 0 or 1.
PRIOR_WEIGHT, PRIOR_FADE, PRIOR_LEAST = 4.0, 4.0, 0.3
#: What a first drafted token is taken for before anything was seen, in pseudo trials.
FIRST_GUESS, GUESS_WEIGHT = 0.8, 2.0
#: Share of its evidence that a position loses in a step that could have tried it and did not,
#: everything before it having been accepted: what is not tried any more must not be believed for
#: ever, or a few unlucky steps would end going deep.
STALE = 1 / 32
#: A run of equal outcomes that was this improbable means that the text has changed, if what is left
#: of the trials before it is enough to say what was usual.
SURPRISE, USUAL = 0.0002, 2.0


def _faded(keep: FloatArray, times: int) -> FloatArray:
    """What ``times`` ones in a row amount to, where each step keeps ``keep`` of those before."""
    return np.where(keep < 1, (1 - keep**times) / np.maximum(1 - keep, 1e-12), times)


class AcceptanceStatistics:
    """Exponentially weighted conditional acceptance.

    A position nobody has tried is taken to be as good as the one before it, so that going deeper
    gets its chance; evidence of positions that are no longer tried fades towards that.

    Args:
        slots: number of slots.
        depth: K, positions kept.

    Attributes:
        seen: ``[slots]``, first positions a slot's request has tried.
        turns: how often the text was found to have changed.
    """

    def __init__(self, slots: int, depth: int) -> None:
        self.depth = depth
        self.seen = np.zeros(slots, dtype=np.int64)
        self.turns = 0
        # Trials and hits of each position; and what is left of those from before the present run
        # of equal outcomes of first positions.
        self._known = np.zeros((2, slots, depth))
        self._before = np.zeros((2, slots, depth))
        self._all = np.zeros((2, depth))
        self._run = np.zeros(slots, dtype=np.int64)
        self._at = np.arange(depth)
        self._process: FloatArray | None = None

    def observe(
        self, slots: IntArray, drafted: IntArray, accepted: IntArray, times: int = 1
    ) -> None:
        """Learn what became of drafts, submitted or secret.

        A chain may have been cut before it was submitted, because the draft was unsure: were only
        what is submitted to count, a position would seem better than it is. So the first token
        that was cut counts as drafted, and the target's own next token is its outcome.

        Args:
            slots: ``[m]``, distinct.
            drafted: ``[m]``, at least 1 each.
            accepted: ``[m]``, at most ``drafted``.
            times: in how many steps on end exactly this happened.
        """
        self._watch_runs(slots, accepted > 0, times)
        tried = self._at < np.minimum(drafted, accepted + 1)[:, None]
        hit = self._at < accepted[:, None]
        keep = np.where(tried, 1 - 1 / MEMORY, 1.0)
        count = tried.sum(0)
        keep_all = (1 - 1 / PROCESS_MEMORY) ** count
        if (drafted[full := accepted == drafted] < self.depth).any():
            missed = (self._at >= drafted[:, None]) & full[:, None]
            keep[missed] = 1 - STALE
            keep_all *= np.where(count, 1.0, (1 - STALE / 4) ** missed.sum(0))
        new: FloatArray = np.array((tried, hit), dtype=np.float64)
        new_all: FloatArray = np.array((count, hit.sum(0)), dtype=np.float64)
        if times > 1:
            new, new_all = new * _faded(keep, times), new_all * _faded(keep_all, times)
            keep, keep_all = keep**times, keep_all**times
        self._before[:, slots] *= keep
        self._known[:, slots] = self._known[:, slots] * keep + new
        self._all *= keep_all
        self._all += new_all
        self.seen[slots] += times
        self._process = None

    def process_rates(self) -> FloatArray:
        """``a_i`` ``[K]`` of all requests."""
        if self._process is None:
            rates, before = [], FIRST_GUESS
            for trials, hits in self._all.T.tolist():
                before = (hits + GUESS_WEIGHT * before) / (trials + GUESS_WEIGHT)
                rates.append(before)
            self._process = np.array(rates)
        return self._process

    def rates(self, slots: IntArray) -> FloatArray:
        """``a_i`` ``[m, K]`` of the requests in ``slots`` ``[m]``, each in (0, 1)."""
        process = self.process_rates()
        weight = self._weight(slots)
        trials, hits = self._known[:, slots]
        shift = np.zeros(len(slots))
        rates: FloatArray = np.empty((len(slots), self.depth))
        for i in range(self.depth):
            # A request that differs from the others at one position differs at the next one too.
            prior = np.minimum(np.maximum(process[i] + shift, 0.01), 0.99)
            rates[:, i] = (hits[:, i] + weight * prior) / (trials[:, i] + weight)
            shift = rates[:, i] - process[i]
        return rates

    def forget(self, slot: int) -> None:
        """The request in ``slot`` has ended."""
        self.seen[slot] = self._run[slot] = 0
        self._known[:, slot] = 0

    def _weight(self, slots: IntArray) -> FloatArray:
        """Pseudo trials ``[m]`` of the prior."""
        weight: FloatArray = PRIOR_WEIGHT / (1 + self.seen[slots] / PRIOR_FADE)
        return np.maximum(PRIOR_LEAST, weight)

    def _watch_runs(self, slots: IntArray, hit: npt.NDArray[np.bool_], times: int) -> None:
        """Where first positions turn out, again and again, as they should not, believe the new."""
        run = self._run[slots]
        run = np.where(hit, np.maximum(run, 0) + times, np.minimum(run, 0) - times)
        if (begins := slots[np.abs(run) == times]).size:
            self._before[:, begins] = self._known[:, begins]
        weight, prior = self._weight(slots), float(self.process_rates()[0])
        trials, hits = self._before[:, slots, 0]
        rate = (hits + weight * prior) / (trials + weight)
        likelihood = np.where(hit, rate, 1 - rate) ** np.abs(run)
        changed = (likelihood < SURPRISE) & (np.abs(run) > 1) & (trials > USUAL)
        if changed.any():
            self.turns += 1
            at = slots[changed]
            # What came before the run is dropped, at all positions: the deeper ones were right or
            # wrong given the first. This outcome is counted by the caller.
            self._known[:, at] = np.maximum(self._known[:, at] - self._before[:, at], 0)
            run[changed] = 0  # the run is what is usual now
        self._run[slots] = run
