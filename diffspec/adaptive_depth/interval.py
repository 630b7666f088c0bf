# SPDX-License-Identifier: Apache-2.0
"""When a request's selection of chunks is due to be made anew.

A retrieval reads a whole layer of keys. It can wait where it would choose what is there already:
the last one did, and drafts are accepted as well as ever. It can wait, too, where the selection
moves because a passage is being followed, as long as all drafts are right and the passage has not
left the chunks that were taken along for that (the successors of the heaviest ones).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diffspec.adaptive_depth.policy import IntArray

#: Steps that a request's usual acceptance remembers, and those it is taken to have begun with, all
#: of them accepted.
_MEMORY, _PSEUDO = 64, 2
#: First tokens missed in a row are a drop from two on, if by what is usual that is as improbable.
_MISSES, _RARE = 2, 0.18
#: A selection is stable if at least this share of it was in the one before.
STABLE = 0.9


class RetrievalInterval:
    """The configured interval, stretched while acceptance holds.

    Acceptance is judged by first tokens alone: the share of all tokens changes with the depth.

    Args:
        slots: number of slots.
        interval: verification steps between two retrievals of one request.
        reach: tokens past its query that a selection covers; None never stretches.
    """

    def __init__(self, slots: int, *, interval: int, reach: int | None = None) -> None:
        self.interval, self.reach = interval, reach
        # How often a request's first tokens are accepted, by how many steps; how many were missed
        # in a row, and whether that is a drop; whether all drafts were right since the selection
        # was made.
        self._usual = np.ones(slots)
        self._trials = np.full(slots, _PSEUDO, dtype=np.int64)
        self._missed = np.zeros(slots, dtype=np.int64)
        self._dropped = np.zeros(slots, dtype=np.bool_)
        self._right = np.ones(slots, dtype=np.bool_)
        self._stable = np.zeros(slots, dtype=np.bool_)

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Learn from a verification step; arguments as of :meth:`DepthPolicy.observe`, all of
        ``drafted`` at least 1."""
        first = accepted > 0
        trials = np.minimum(self._trials[slots] + 1, _MEMORY)
        self._trials[slots] = trials
        self._usual[slots] += (first - self._usual[slots]) / trials
        self._missed[slots] = missed = np.where(first, 0, self._missed[slots] + 1)
        rare = (missed >= _MISSES) & ((1 - self._usual[slots]) ** missed < _RARE)
        # A run that lasts becomes what is usual: it is a drop all the same.
        self._dropped[slots] = ~first & (self._dropped[slots] | rare)
        self._right[slots] &= accepted == drafted

    def overdue(self, slots: IntArray, steps: IntArray, ahead: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each selection ``[m]`` has to be made anew.

        Args:
            slots: ``[m]``.
            steps: ``[m]``, verification steps since it was made, this one included.
            ahead: ``[m]``, tokens past its query that this step's drafts may reach.
        """
        if self.reach is None:
            return np.greater_equal(steps, self.interval)
        followed = self._right[slots] & (ahead <= self.reach)
        stretched = followed | (self._stable[slots] & ~self._dropped[slots])
        late: npt.NDArray[np.bool_] = (steps >= self.interval) & ~stretched
        return late

    def renewed(self, slots: IntArray) -> None:
        """The selections of ``slots`` ``[m]`` were made anew."""
        self._right[slots] = True

    def selected(self, slots: IntArray, kept: npt.NDArray[np.floating]) -> None:
        """Share ``kept`` ``[m]`` of the new selections of ``slots`` ``[m]`` was there before."""
        self._stable[slots] = kept >= STABLE

    def forget(self, slot: int) -> None:
        """The request in ``slot`` has ended."""
        self._usual[slot], self._trials[slot], self._missed[slot] = 1, _PSEUDO, 0
        self._right[slot], self._stable[slot], self._dropped[slot] = True, False, False
