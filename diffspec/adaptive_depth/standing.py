# SPDX-License-Identifier: Apache-2.0
"""For how long a choice of depths stands before it is made anew."""

from __future__ import annotations

import numpy as np

from diffspec.adaptive_depth.policy import IntArray
from diffspec.adaptive_depth.shadow import LAST_GAP

#: Steps for which a choice holds, unless requests come or go, and at most, where it turned out the
#: same again and nothing is to be learnt for the moment. What was observed is learnt after them, so
#: it is also how late a text can be found to have changed.
HOLD, LONGEST_HOLD = 4, 16
#: Steps after which a pause is looked at; at most, if drafting is hopeless, as long as steps rest
#: and take what they took, to within a share of it.
PAUSE, LONGEST_PAUSE, ALIKE = LAST_GAP, 4 * LAST_GAP, 0.1


class Standing:
    """The last choice: drafting that holds for some steps, or a pause that stands until there is
    news of the requests that pause."""

    def __init__(self) -> None:
        # Depths of the last choice to draft, for whom, and when.
        self._depths: IntArray | None = None
        self._slots = np.zeros(0, dtype=np.int64)
        self._at = 0
        self._hold = HOLD
        # Slots that pause, when that is looked at, no later than when, and a step's seconds.
        self._paused: IntArray | None = None
        self._look_at = self._latest = 0
        self._seconds = 0.0

    def take(self, slots: IntArray, depths: IntArray, *, step: int, calm: bool) -> None:
        """``depths`` ``[m]`` were chosen for ``slots`` ``[m]`` in ``step``; ``calm`` if nothing is
        to be learnt for the moment."""
        if not depths.any():
            self.drop()
            return
        again = (
            calm
            and depths.all()
            and self._depths is not None
            and np.array_equal(self._slots, slots)
            and np.array_equal(self._depths, depths)
        )
        self._hold = min(2 * self._hold, LONGEST_HOLD) if again else HOLD
        self._depths, self._slots = depths, slots.copy()
        self._at = step

    def held(self, slots: IntArray, room: IntArray, *, step: int, calm: bool) -> IntArray | None:
        """The depths ``[m]`` of the last choice if nothing speaks against them, ``room`` ``[m]``
        included; ``calm`` as of :meth:`take`."""
        if (
            self._depths is None
            or step - self._at >= (self._hold if calm else HOLD)
            or not np.array_equal(self._slots, slots)
            or (room < self._depths).any()
        ):
            return None
        return self._depths

    def pause(self, slots: IntArray, *, step: int, seconds: float, hopeless: bool) -> None:
        """``slots`` ``[m]`` draft nothing from ``step`` on, and steps take ``seconds``; whether it
        would be ``hopeless`` to draft even if the costs were somewhat different."""
        self._paused, self._seconds = slots.copy(), seconds
        self._look_at = step + PAUSE
        self._latest = step + LONGEST_PAUSE if hopeless else self._look_at

    def rested(self, steps: int, seconds: float) -> None:
        """The pause went on for ``steps`` steps of ``seconds`` each that nobody timed one by one:
        as long as all is as it was, there is no need to look."""
        if abs(seconds - self._seconds) < ALIKE * self._seconds:
            self._look_at = min(self._look_at + steps, self._latest)

    def pauses(self, slots: IntArray, *, step: int) -> bool:
        """Whether ``slots`` ``[m]`` pause and nothing is new; looked at afresh now and then, as
        contexts grow."""
        return (
            self._paused is not None
            and self.look_in(step) > 0
            and np.array_equal(self._paused, slots)
        )

    def look_in(self, step: int) -> int:
        """Steps from ``step`` until a pause is looked at; at most 0 if that is due or none is."""
        return 0 if self._paused is None else self._look_at - step

    def news(self) -> None:
        """Something was learnt of a request."""
        self._paused = None

    def drop(self) -> None:
        """Nothing holds any more."""
        self._depths = None

    def forget(self) -> None:
        """Requests come or go."""
        self._paused = self._depths = None
