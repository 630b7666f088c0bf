# SPDX-License-Identifier: Apache-2.0
"""When a request's selection of chunks is due to be made anew.

A retrieval reads a whole layer of keys. While drafts are accepted as well as ever, the chunks they
come from are evidently still there, and the retrieval can wait: until acceptance drops, or until
the text that is being followed may have left the chunks that were taken along for that (the
successors of the heaviest ones). Where the last retrieval chose what was there already, nothing is
being followed, and only the room for new rows ends the wait.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diffspec.adaptive_depth.policy import IntArray

#: Weight of one more step in a request's usual acceptance.
_NEW = 1 / 16
#: How far below its usual share a step may fall; the usual share itself is approached slowly.
_SLACK = 0.02
#: A selection is stable if at least this share of it was in the one before.
STABLE = 0.9


class RetrievalInterval:
    """The configured interval, stretched while acceptance holds.

    Args:
        slots: number of slots.
        interval: verification steps between two retrievals of one request.
        reach: tokens past its query that a selection covers; 0 never stretches.
    """

    def __init__(self, slots: int, *, interval: int, reach: int = 0) -> None:
        self.interval, self.reach = interval, reach
        # Until a request has shown what is usual, only full acceptance counts as holding.
        self._usual = np.ones(slots)
        self._holds = np.ones(slots, dtype=np.bool_)
        self._stable = np.zeros(slots, dtype=np.bool_)

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Learn from a verification step; arguments as of :meth:`DepthPolicy.observe`."""
        share = accepted / drafted
        usual = self._usual[slots]
        self._holds[slots] &= share >= usual - _SLACK
        self._usual[slots] = usual + _NEW * (share - usual)

    def overdue(self, slots: IntArray, steps: IntArray, ahead: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each selection ``[m]`` has to be made anew.

        Args:
            slots: ``[m]``.
            steps: ``[m]``, verification steps since it was made, this one included.
            ahead: ``[m]``, tokens past its query that this step's drafts may reach.
        """
        covered = (ahead <= self.reach) | (self._stable[slots] & (self.reach > 0))
        stretched = self._holds[slots] & covered
        late: npt.NDArray[np.bool_] = (steps >= self.interval) & ~stretched
        return late

    def renewed(self, slots: IntArray) -> None:
        """The selections of ``slots`` ``[m]`` were made anew."""
        self._holds[slots] = True

    def selected(self, slots: IntArray, kept: npt.NDArray[np.floating]) -> None:
        """Share ``kept`` ``[m]`` of the new selections of ``slots`` ``[m]`` was there before."""
        self._stable[slots] = kept >= STABLE

    def forget(self, slot: int) -> None:
        """The request in ``slot`` has ended."""
        self._usual[slot], self._holds[slot], self._stable[slot] = 1, True, False
