# SPDX-License-Identifier: Apache-2.0
"""Which request owns which slot, and what the slot's working cache holds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from diffspec.proposer.batch import IntArray

#: ``end`` of a slot whose working cache covers nothing.
NOTHING = -1
#: Instead of a first slot: these slots do not follow one another.
NOT_DENSE = -1


def first_if_consecutive(slots: IntArray) -> int:
    """The first of ascending ``slots`` ``[b]`` if they follow one another, else ``NOT_DENSE``."""
    return int(slots[0]) if slots[-1] - slots[0] == len(slots) - 1 else NOT_DENSE


class SlotTable:
    """Per-slot state as arrays on the host; requests without a slot get -1 and are not drafted.

    Attributes:
        rows: ``[slots]``, committed working-cache rows.
        base: ``[slots]``, rows right after the last rebuild; those past it were appended.
        end: ``[slots]``, context length the working cache is current for, or ``NOTHING``.
        steps: ``[slots]``, verification steps since the last rebuild.
    """

    def __init__(self, slots: int) -> None:
        self.count = slots
        self.rows = np.zeros(slots, dtype=np.int64)
        self.base = np.zeros(slots, dtype=np.int64)
        self.end = np.full(slots, NOTHING, dtype=np.int64)
        self.steps = np.zeros(slots, dtype=np.int64)
        self._free = list(range(slots))  # a heap: low slots first keeps a batch's slots together
        self._owner: dict[str, int] = {}
        self._last_ids: list[str] = []
        self._last_slots = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._owner)

    def of(self, request_ids: Sequence[str], wanted: np.ndarray) -> IntArray:
        """Slots ``[b]`` of the requests; one without a slot gets one if ``wanted`` and free."""
        ids = list(request_ids)
        if ids == self._last_ids and not np.any(wanted & (self._last_slots < 0) & bool(self._free)):
            return self._last_slots
        slots = np.fromiter(
            (self._find(rid, bool(w)) for rid, w in zip(ids, wanted, strict=True)),
            dtype=np.int64,
            count=len(ids),
        )
        self._last_ids, self._last_slots = ids, slots
        return slots

    def _find(self, request_id: str, wanted: bool) -> int:
        slot = self._owner.get(request_id, -1)
        if slot < 0 and wanted and self._free:
            slot = heapq.heappop(self._free)
            self._owner[request_id] = slot
            self.rows[slot] = self.steps[slot] = 0
            self.end[slot] = NOTHING
        return slot

    def release(self, request_id: str) -> int:
        """Free a request's slot; returns it, or -1 if it had none."""
        slot = self._owner.pop(request_id, -1)
        if slot >= 0:
            heapq.heappush(self._free, slot)
            self.end[slot] = NOTHING
            self._last_ids, self._last_slots = [], self._last_slots[:0]
        return slot

    def drop(self, request_id: str) -> None:
        """The request keeps its slot, but its working cache is void (preemption)."""
        slot = self._owner.get(request_id, -1)
        if slot >= 0:
            self.end[slot] = NOTHING

    def drop_all(self) -> None:
        """Every working cache is void (a fault left them in doubt)."""
        self.end.fill(NOTHING)
