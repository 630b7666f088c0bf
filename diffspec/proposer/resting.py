# SPDX-License-Identifier: Apache-2.0
"""Steps for which nothing has to be planned, because it is known that nothing would be drafted."""

from __future__ import annotations

import time

import numpy as np

from diffspec.adaptive_depth.policy import DepthPolicy, IntArray
from diffspec.proposer.counters import Counters
from diffspec.proposer.faults import FaultLog


class Resting:
    """How long a batch may rest, and what has to be made up for afterwards.

    Attributes:
        left: steps for which nothing would be planned for the batch that was last planned for.
    """

    def __init__(self, counters: Counters, faults: FaultLog) -> None:
        self.left = 0
        self._room = 0  # steps beyond these that there is context for
        self._counters, self._faults = counters, faults
        self._taken = 0
        self._slots: IntArray = np.zeros(0, dtype=np.int64)
        self._began = self._last = self._proposing = 0.0

    def grant(self, steps: int, slots: IntArray, room: int) -> None:
        """The whole batch, in ``slots`` ``[b]``, may rest for ``steps`` steps, as far as the least
        context left, of ``room`` tokens, lasts."""
        room = max(room, 0)
        self.left, self._slots = min(steps, room), slots
        self._room = room - self.left

    def begin(self) -> None:
        """The step that planned has ended."""
        self._began, self._proposing = time.perf_counter(), 0.0

    def take(self) -> None:
        """One such step has passed."""
        self.left -= 1
        self._taken += 1
        self._last = time.perf_counter()

    def timed(self, propose: float) -> None:
        """Proposing took so many seconds in such a step."""
        self._proposing += propose

    def settle(self, policy: DepthPolicy) -> int:
        """Count what has passed and tell ``policy``; returns for how long it would rest on."""
        steps, self._taken = self._taken, 0
        if not steps:
            return 0
        passed, requests = self._last - self._began, len(self._slots)
        proposing, self._proposing, self._began = self._proposing, 0.0, self._last
        self._counters.depths[0] += steps * requests
        self._counters.zero["no_gain"] += steps * requests
        try:
            return policy.rested(self._slots, steps, passed / steps, proposing / steps)
        except Exception as error:
            self._faults.record("planning", error)
            return 0

    def go_on(self, policy: DepthPolicy) -> bool:
        """The rest is over; whether ``policy`` has the batch rest on."""
        self.grant(self.settle(policy), self._slots, self._room)
        return self.left > 0

    def wake(self, policy: DepthPolicy) -> None:
        """No more rest; count what has passed and tell ``policy``."""
        self.settle(policy)
        self.left = 0
