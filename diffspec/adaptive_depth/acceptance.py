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
#: Most steps that are learnt from together.
TOGETHER = 16


def _left(keep: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where each of some steps keeps ``keep`` ``[t, ...]`` of what was there before it: what the
    last one leaves of each step's own ``[t, ...]``, and of what was there before them all."""
    after = np.ones_like(keep)
    after[:-1] = np.cumprod(keep[:0:-1], axis=0)[::-1]
    return after, after[0] * keep[0]


class AcceptanceStatistics:
    """Exponentially weighted conditional acceptance.

    A position nobody has tried is taken to be as good as the one before it, so that going deeper
    gets its chance; evidence of positions that are no longer tried fades towards that.

    What is observed is put aside and learnt when somebody asks, many steps in one pass: a step
    without a question costs next to nothing.

    Args:
        slots: number of slots.
        depth: K, positions kept.
    """

    def __init__(self, slots: int, depth: int) -> None:
        self.depth = depth
        self._seen = np.zeros(slots, dtype=np.int64)
        self._turns = 0
        # What is not learnt yet: tokens drafted and accepted by step, and of whom.
        self._news: list[tuple[IntArray, IntArray]] = []
        self._of = np.zeros(0, dtype=np.int64)
        # Trials and hits of each position; and what is left of those from before the present run
        # of equal outcomes of first positions.
        self._known = np.zeros((2, slots, depth))
        self._before = np.zeros((2, slots, depth))
        self._all = np.zeros((2, depth))
        self._run = np.zeros(slots, dtype=np.int64)
        self._at = np.arange(depth)
        self._process: FloatArray | None = None

    @property
    def seen(self) -> IntArray:
        """``[slots]``, first positions a slot's request has tried."""
        self._learn()
        return self._seen

    @property
    def turns(self) -> int:
        """How often the text was found to have changed."""
        self._learn()
        return self._turns

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Learn what became of drafts, submitted or secret.

        A chain may have been cut before it was submitted, because the draft was unsure: were only
        what is submitted to count, a position would seem better than it is. So the first token
        that was cut counts as drafted, and the target's own next token is its outcome.

        Args:
            slots: ``[m]``, distinct. The arrays are kept.
            drafted: ``[m]``, at least 1 each.
            accepted: ``[m]``, at most ``drafted``.
        """
        if self._news and not np.array_equal(slots, self._of):
            self._learn()
        self._of = slots
        self._news.append((drafted, accepted))
        if len(self._news) == TOGETHER:
            self._learn()

    def process_rates(self) -> FloatArray:
        """``a_i`` ``[K]`` of all requests."""
        self._learn()
        return self._process_rates()

    def _process_rates(self) -> FloatArray:
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
        self._learn()
        self._seen[slot] = self._run[slot] = 0
        self._known[:, slot] = 0

    def _weight(self, slots: IntArray) -> FloatArray:
        """Pseudo trials ``[m]`` of the prior."""
        weight: FloatArray = PRIOR_WEIGHT / (1 + self._seen[slots] / PRIOR_FADE)
        return np.maximum(PRIOR_LEAST, weight)

    def _learn(self) -> None:
        if not self._news:
            return
        slots = self._of
        drafted, accepted = (np.array(steps) for steps in zip(*self._news, strict=True))  # [t, m]
        self._news.clear()
        tried = self._at < np.minimum(drafted, accepted + 1)[..., None]
        hit = self._at < accepted[..., None]
        keep = np.where(tried, 1 - 1 / MEMORY, 1.0)
        count = tried.sum(1)
        keep_all = (1 - 1 / PROCESS_MEMORY) ** count
        if (drafted[full := accepted == drafted] < self.depth).any():
            missed = (self._at >= drafted[..., None]) & full[..., None]
            keep[missed] = 1 - STALE
            keep_all *= np.where(count, 1.0, (1 - STALE / 4) ** missed.sum(1))
        after, of_before = _left(keep)
        new = np.array((tried, hit)) * after
        known = self._known[:, slots] * of_before
        before = self._before[:, slots] * of_before
        past = self._before_change(slots, accepted > 0, known, before, new)
        self._known[:, slots] = np.maximum(known + new.sum(1) - past, 0)
        after_all, of_all = _left(keep_all)
        self._all = self._all * of_all + (np.array((count, hit.sum(1))) * after_all).sum(1)
        self._seen[slots] += len(drafted)
        self._process = None

    def _before_change(
        self,
        slots: IntArray,
        hit: npt.NDArray[np.bool_],
        known: FloatArray,
        before: FloatArray,
        new: FloatArray,
    ) -> FloatArray:
        """Where first positions turn out, again and again, as they should not, believe the new.

        Args:
            hit: ``[t, m]``, outcomes of first positions, step by step.
            known: ``[2, m, K]``, what is left by now of the evidence from before these steps, and
                ``before`` of that from before the run of equal outcomes they began with.
            new: ``[2, t, m, K]``, what is left of each step's.

        Returns:
            ``[2, m, K]``, of all that what is to be dropped: all from before the run, at all
            positions, for the deeper ones were right or wrong given the first.
        """
        last, run = hit[-1], self._run[slots]
        in_run = np.logical_and.accumulate((hit == last)[::-1])[::-1]
        length = in_run.sum(0)
        goes_on = (length == len(hit)) & (np.where(last, run, -run) > 0)
        begun = known + (new * ~in_run[..., None]).sum(1)
        before = np.where(goes_on[:, None], before, begun)
        run = np.where(goes_on, np.abs(run), 0) + length
        weight, prior = self._weight(slots), float(self._process_rates()[0])
        trials, hits = before[..., 0]
        rate = (hits + weight * prior) / (trials + weight)
        likelihood = np.where(last, rate, 1 - rate) ** run
        changed = (likelihood < SURPRISE) & (run > 1) & (trials > USUAL)
        self._turns += int(changed.any())
        run[changed] = 0  # the run is what is usual now
        self._before[:, slots] = before
        self._run[slots] = np.where(last, run, -run)
        return np.where(changed[:, None], before, 0.0)
