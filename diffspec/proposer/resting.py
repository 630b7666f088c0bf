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
        self._counters, self._faults = counters, faults
        self._taken = 0
        self._slots: IntArray = np.zeros(0, dtype=np.int64)
        self._began = self._last = 0.0

    def grant(self, steps: int, slots: IntArray) -> None:
        """The whole batch, in ``slots`` ``[b]``, may rest for ``steps`` steps."""
        self.left, self._slots = steps, slots

    def begin(self) -> None:
        """The step that planned has ended."""
        self._began = time.perf_counter()

    def take(self) -> None:
        """One such step has passed."""
        self.left -= 1
        self._taken += 1
        self._last = time.perf_counter()

    def wake(self, policy: DepthPolicy) -> None:
        """No more rest; count what has passed and tell ``policy``."""
        steps, self.left, self._taken = self._taken, 0, 0
        if not steps:
            return
        passed, requests = self._last - self._began, len(self._slots)
        self._counters.depths[0] += steps * requests
        self._counters.zero["no_gain"] += steps * requests
        try:
            policy.rested(self._slots, steps, passed / steps)
        except Exception as error:
            self._faults.record("planning", error)
