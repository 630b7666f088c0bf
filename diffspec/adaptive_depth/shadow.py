# SPDX-License-Identifier: Apache-2.0
"""When a request that drafts nothing drafts in secret.

Nothing is submitted; what the target says next tells what would have been accepted. So a draft that
has become good again is noticed for the price of a draft step or a few, and of no verification.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from diffspec.adaptive_depth.policy import IntArray

#: Share of step time that shadow drafts may take over any :data:`WINDOW` steps. A little below the
#: promised 2 %, because times vary and a draft's own is known only afterwards.
SHARE, WINDOW = 0.018, 256
#: Share that may be taken without a hit: the rest is kept for what follows the first one.
ROUTINE = 0.012
#: Steps between shadow drafts of one request: at first, after a hit, and at most, unless they cost
#: so much that they have to be rarer.
FIRST_GAP, HIT_GAP, LAST_GAP = 4, 2, 32
#: Steps after which a shadow draft that could not be afforded is asked about again; after a hit
#: :data:`FIRST_GAP`.
LATER = 16
#: Steps whose time is what a step takes now.
RECENT = 16
#: What a shadow draft is taken to cost before any draft was measured, as a share of a step.
GUESS = 0.2

#: Seconds that so many shadow drafts add to a step; None if nothing was measured yet.
Seconds = Callable[[int], float | None]


class ShadowDrafts:
    """Cadence per request and budget per process.

    Args:
        slots: number of slots.
    """

    def __init__(self, slots: int) -> None:
        self._gap = np.full(slots, FIRST_GAP, dtype=np.int64)
        self._since = np.zeros(slots, dtype=np.int64)
        # Steps since the last one that was afforded: who is put off keeps its place in the queue.
        self._queued = np.zeros(slots, dtype=np.int64)
        self._steps = np.zeros(WINDOW)
        self._spent = np.zeros(WINDOW)
        self._at = self._count = 0
        # Steps that have to lie between two of a request for it to be able to go on like that.
        self._even = 1
        self._sum_steps = self._sum_spent = self._recent = 0.0

    def due(self, slots: IntArray, seconds: Seconds, wanted: IntArray) -> npt.NDArray[np.bool_]:
        """Which of the requests in ``slots`` ``[m]``, all without drafts in this step, should
        shadow one: all that wait, since they share the step, or as many as can be afforded.

        Args:
            seconds: what so many shadow drafts add to a step.
            wanted: ``[m]``, tokens each would draft: comparing them takes as many steps.
        """
        self._since[slots] += 1
        self._queued[slots] += 1
        waits = self._waits(slots)
        chosen = np.zeros(len(slots), dtype=np.bool_)
        if (self._since[slots] < waits).all():
            return chosen
        # With whose turn it is go those who were put off.
        waiting = np.flatnonzero(self._queued[slots] >= waits)
        # After a hit first, then who has waited longest.
        at = slots[waiting]
        waiting = waiting[np.lexsort((-self._queued[at], self._gap[at] != HIT_GAP))]
        count = len(waiting)
        while count:
            cost = self.cost(seconds(count))
            if self._affords(slots[waiting[:count]], cost):
                break
            count //= 2
        if count:
            # Requests that are due together share a step.
            turns = len(np.unique(self._gap[slots] - self._since[slots]))
            self._even = math.ceil(cost * turns / (ROUTINE * self._usual()))
        self._put_off(slots[waiting[count:]])
        now = waiting[:count]
        chosen[now] = True
        self._since[slots[now]] = 1 - wanted[now]
        self._queued[slots[now]] = 0
        return chosen

    def until_due(self, slots: IntArray) -> int:
        """Steps without drafts until the first of ``slots`` ``[m]`` is due; 0 if the next is."""
        return max(0, int((self._waits(slots) - self._since[slots]).min()) - 1)

    def wait_on(self, slots: IntArray, seconds: Seconds) -> None:
        """If not even one of what is due to ``slots`` ``[m]`` in the next step could be afforded,
        all is refused now, which needs no step; ``seconds`` as of :meth:`due`."""
        next_ones = slots[self._since[slots] + 1 >= self._waits(slots)]
        if next_ones.size and not self._affords(next_ones, self.cost(seconds(1))):
            self._put_off(next_ones)
            self._since[next_ones] -= 1

    def rested(self, slots: IntArray, steps: int, seconds: float | None = None) -> None:
        """``slots`` ``[m]`` had ``steps`` steps without drafts that were not asked about; they took
        ``seconds`` each, if they were not counted otherwise."""
        self._since[slots] += steps
        self._queued[slots] += steps
        if seconds is not None:
            for _ in range(steps):
                self.step(seconds, 0.0)

    def observe(self, slots: IntArray, hit: npt.NDArray[np.bool_]) -> None:
        """What became of shadow drafts ``[m]``."""
        longer = np.minimum(2 * self._gap[slots], LAST_GAP)
        self._gap[slots] = np.where(hit, HIT_GAP, longer)

    def step(self, seconds: float, spent: float) -> None:
        """A step took ``seconds``, of which shadow drafts ``spent``."""
        at = self._at
        # Steps get shorter when drafting stops, and later windows with them.
        self._recent += (min(seconds, 2 * self._recent or seconds) - self._recent) / RECENT
        self._sum_steps += seconds - self._steps[at]
        self._sum_spent += spent - self._spent[at]
        self._steps[at], self._spent[at] = seconds, spent
        self._at, self._count = (at + 1) % WINDOW, min(self._count + 1, WINDOW)

    def cost(self, seconds: float | None) -> float:
        """``seconds``, or a guess if that is None."""
        return GUESS * self._usual() if seconds is None else seconds

    def drafting(self, slots: IntArray) -> None:
        """These requests draft in this step: the next pause begins anew."""
        self._gap[slots], self._since[slots], self._queued[slots] = FIRST_GAP, 0, 0

    def forget(self, slot: int) -> None:
        """The request in ``slot`` has ended."""
        self._gap[slot], self._since[slot], self._queued[slot] = FIRST_GAP, 0, 0

    def _waits(self, slots: IntArray) -> IntArray:
        """Steps ``[m]`` between two shadow drafts of the same request."""
        gap = self._gap[slots]
        return np.where(gap > FIRST_GAP, np.maximum(gap, self._even), gap)

    def _usual(self) -> float:
        """Seconds of a step lately; 0 before the first."""
        return min(self._sum_steps / self._count, self._recent) if self._count else 0.0

    def _hopeful(self, slots: IntArray) -> bool:
        return bool((self._gap[slots] == HIT_GAP).any())

    def _affords(self, slots: IntArray, cost: float) -> bool:
        """Whether ``cost`` is not too much for ``slots`` ``[m]``, which wait."""
        # The oldest step leaves the window as this one enters it.
        oldest = self._at if self._count == WINDOW else None
        spent = self._sum_spent - (self._spent[oldest] if oldest is not None else 0.0)
        share, usual = SHARE if self._hopeful(slots) else ROUTINE, self._usual()
        return bool(usual) and spent + cost <= share * usual * WINDOW

    def _put_off(self, slots: IntArray) -> None:
        """``slots`` ``[m]``, which wait, cannot be afforded: they wait on."""
        later = FIRST_GAP if self._hopeful(slots) else LATER
        self._since[slots] = self._waits(slots) - later
