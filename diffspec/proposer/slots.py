# SPDX-License-Identifier: Apache-2.0
"""Which request owns which slot, and what the slot's working cache holds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diffspec.proposer.batch import IntArray

#: ``end`` of a slot whose working cache covers nothing.
NOTHING = -1
#: Instead of a first slot: these slots do not follow one another.
NOT_DENSE = -1


def first_if_consecutive(slots: IntArray) -> int:
    """The first of ascending ``slots`` ``[b]`` if they follow one another, else ``NOT_DENSE``."""
    return int(slots[0]) if slots[-1] - slots[0] == len(slots) - 1 else NOT_DENSE


@dataclass(slots=True)
class Shadow:
    """A secretly drafted chain: drafted at context ``length``, its first ``right`` tokens right
    so far."""

    chain: list[int]
    length: int
    right: int = 0


class SlotTable:
    """Per-slot state as arrays on the host; requests without a slot get -1 and are not drafted.

    Attributes:
        rows: ``[slots]``, committed working-cache rows.
        base: ``[slots]``, rows right after the last rebuild; those past it were appended.
        end: ``[slots]``, context length the working cache is current for, or ``NOTHING``.
        steps: ``[slots]``, verification steps since the last rebuild.
        last_ids, last_slots: request ids of the last batch asked about, and their slots ``[b]``.
        shadows: secretly drafted chains that are being compared, by slot; few at a time.
    """

    def __init__(self, slots: int) -> None:
        self.count = slots
        self.rows = np.zeros(slots, dtype=np.int64)
        self.base = np.zeros(slots, dtype=np.int64)
        self.end = np.full(slots, NOTHING, dtype=np.int64)
        self.steps = np.zeros(slots, dtype=np.int64)
        self.shadows: dict[int, Shadow] = {}
        self._free = list(range(slots))  # a heap: low slots first keeps a batch's slots together
        self._owner: dict[str, int] = {}
        self.last_ids: list[str] = []
        self.last_slots = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._owner)

    def of(self, request_ids: Sequence[str], wanted: np.ndarray) -> IntArray:
        """Slots ``[b]`` of the requests; one without a slot gets one if ``wanted`` and free."""
        ids = list(request_ids)
        if ids == self.last_ids and not np.any(wanted & (self.last_slots < 0) & bool(self._free)):
            return self.last_slots
        slots = np.fromiter(
            (self._find(rid, bool(w)) for rid, w in zip(ids, wanted, strict=True)),
            dtype=np.int64,
            count=len(ids),
        )
        self.last_ids, self.last_slots = ids, slots
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
            self.shadows.pop(slot, None)
            self.end[slot] = NOTHING
            self.last_ids, self.last_slots = [], self.last_slots[:0]
        return slot

    def owners(self) -> list[str]:
        """The requests that have a slot."""
        return list(self._owner)

    def drop(self, request_id: str) -> None:
        """The request keeps its slot, but its working cache is void (preemption)."""
        slot = self._owner.get(request_id, -1)
        if slot >= 0:
            self.end[slot] = NOTHING

    def drop_all(self) -> None:
        """Every working cache is void (a fault left them in doubt)."""
        self.end.fill(NOTHING)

    def keep_shadows(self, slots: IntArray, lengths: IntArray, chains: list[list[int]]) -> None:
        """Remember secretly drafted chains of ``slots`` ``[m]``.

        Args:
            lengths: ``[m]``, context lengths when they were drafted.
            chains: per slot target token ids, at least one.
        """
        for slot, length, chain in zip(slots.tolist(), lengths.tolist(), chains, strict=True):
            self.shadows[slot] = Shadow(chain, length)

    def compare_shadows(
        self, slots: IntArray, lengths: IntArray, sampled: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Compare the next token of what waits with what the target sampled.

        Args:
            slots, lengths, sampled: ``[b]``, as in a batch; slot -1 for none.

        Returns:
            Slots ``[m]`` whose comparison has ended, tokens drafted ``[m]``, and how many of them
            ``[m]`` were right from the first on.
        """
        ended = []
        for slot, length, token in zip(
            slots.tolist(), lengths.tolist(), sampled.tolist(), strict=True
        ):
            shadow = self.shadows.get(slot)
            if shadow is None or token < 0:
                continue
            if length != shadow.length + shadow.right + 1:
                # It drafted in the meantime, or started over: what is known counts.
                del self.shadows[slot]
                if shadow.right:
                    ended.append((slot, shadow.right, shadow.right))
                continue
            right = shadow.chain[shadow.right] == token
            shadow.right += right
            if not right or shadow.right == len(shadow.chain):
                ended.append((slot, len(shadow.chain), shadow.right))
                del self.shadows[slot]
        at, drafted, accepted = np.array(ended, dtype=np.int64).reshape(-1, 3).T
        return at, drafted, accepted
