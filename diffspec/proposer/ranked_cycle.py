# SPDX-License-Identifier: Apache-2.0
"""The drafting cycle on one of several tensor-parallel ranks.

Ranks see the same requests, rows and tokens, and hold their own heads of them. What they could
decide differently, because it hangs on clocks or on what went wrong, is decided on rank 0: one sum
of a few numbers over the ranks, before the step's first row is written, tells the others. It also
tells everyone whether a rank has failed since the last one.

A rank that fails in the middle of a step makes the rest of the step's collective calls with zeros.
Nothing wrong can come of that: drafts are verified. In the next step all ranks act as if each had
failed: rows that may be missing on one are marked as lost on all, working caches are made anew, and
nobody drafts. After several such steps in a row, or where it is not known what one rank has, all
give up together, and from then on there is no collective call of ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffspec.proposer.batch import IntArray, StepBatch
from diffspec.proposer.cycle import DraftingCycle, Work
from diffspec.proposer.head import Projection
from diffspec.proposer.ranks import Call, Collectives, OutOfStep

#: Places in the numbers that are summed. Ranks count up what has gone wrong: this step cannot be
#: read, rows of an earlier one may not have been written, it was not drafted to its end, a rank
#: has given up. Rank 0 adds how many steps may rest; then come three numbers per request.
_UNREAD, _UNWRITTEN, _UNDRAFTED, _OFF, _REST, _HEAD = range(6)


class RankedCycle(DraftingCycle):
    """One rank's part of a cycle; arguments after ``collectives`` as of :class:`DraftingCycle`.

    :meth:`run`, :meth:`flush` and :meth:`unusable` raise :class:`OutOfStep` where this rank cannot
    keep step any more.
    """

    # Ranks make the same calls, and their confidences may differ in the last bits.
    _may_stop = False

    def __init__(self, collectives: Collectives, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.collectives = collectives
        self._wrong = np.zeros(_REST, dtype=np.int64)
        self._work: Work | None = None
        self._off = self._skips = self._recovers = False
        self._faults_before = 0  # as counted when ranks agreed on this step
        # Slots of the rows written since ranks agreed the last time, and the calls that took.
        self._written: list[Tensor] = []
        self._calls: list[Call] = []

    def run(self, batch: StepBatch) -> list[list[int]]:
        """Of the ranks' drafts those of the host's choice count; see :class:`DraftingCycle`."""
        self._begin()
        drafts = super().run(batch)
        if not self._off and self.faults.total != self._faults_before:
            self._wrong[_UNDRAFTED] = 1
            try:
                calls = self.calls(batch)
            except Exception as error:
                raise OutOfStep(f"DiffSpec: it is not known what was due: {error}") from error
            self.collectives.complete(calls)
        return drafts

    def flush(self) -> None:
        """As of :class:`DraftingCycle`; a fault is dealt with when ranks agree the next time."""
        if self._pending is None or not self._pending.count:
            return
        self._begin()
        self._will_write(self._pending.rows()[2])
        super().flush()
        self.collectives.complete(self._calls)

    def rest(self, token_ids: Tensor, features: Tensor, slots: Tensor) -> bool:
        """As of :class:`DraftingCycle`."""
        if self._pending is None or not self._pending.fits(len(slots)):
            return False
        self._put_aside(token_ids, features, slots)
        self._resting.take()
        return True

    def unusable(self, count: int, host_slots: Tensor, error: BaseException) -> list[list[int]]:
        """As of :class:`DraftingCycle`; the step is lost on all ranks."""
        if not self._off:
            self._begin()
            self._resting.wake(self.policy)
            self.faults.record("ingesting verified rows", error)
            self._wrong[_UNREAD] = 1
            self._agree(count, None, host_slots)
        return [[] for _ in range(count)]

    def lost(self, host_slots: Tensor, error: BaseException) -> None:
        """Rows were not written on this rank: told to all when they agree the next time."""
        self.faults.record("ingesting verified rows", error)
        self._wrong[_UNWRITTEN] = 1
        assert self._canonical is not None, "bind() comes first"
        try:  # holes decide who is drafted for, so until then they are as on the other ranks
            for slots in self._written:
                self._canonical.heal(slots)
        except Exception as second:
            raise OutOfStep(f"DiffSpec: lost rows cannot be noted: {second}") from second
        if self._pending is not None:  # they are among those that were to be written
            self._pending.clear()

    def calls(self, batch: StepBatch) -> list[Call]:
        """The collective calls of the step of ``batch`` that :meth:`run` has just been given."""
        work = self._work
        if work is None:
            return self._calls
        lengths = batch.lengths[work.members]
        calls = self._calls + [
            ("masses", *shape) for shape in self.working_set.scored(lengths[work.due])
        ]
        chains = work.chains[~(work.due & self.working_set.ends_in_hole(batch, work.members))]
        for step in range(int(chains.max(initial=0))):
            alive = int(np.count_nonzero(chains > step))
            if step:
                calls.append(("embed", alive))
            calls += [("output", alive), ("mlp", alive), ("logits", alive)]
        return calls

    # Steps of a cycle.

    def _begin(self) -> None:
        self.collectives.begin()
        self._calls, self._work = [], None

    def _plan(self, batch: StepBatch) -> Work | None:
        """Rank 0 plans as ever; all do what it says."""
        if self._off:
            return super()._plan(batch)
        leads, planned = self.collectives.ranks.rank == 0, None
        if leads:
            planned = super()._plan(batch)
        else:
            self.slots.of(batch.request_ids, batch.drafting)
        self._work = self._agree(len(batch.request_ids), planned, batch.slots)
        self._faults_before = self.faults.total
        return self._work

    def _agree(self, count: int, planned: Work | None, host_slots: Tensor) -> Work | None:
        """Sum everyone's numbers for a step of ``count`` requests and ``host_slots`` ``[n]``, act
        on what went wrong, and return what is to be drafted."""
        numbers = np.zeros(_HEAD + 3 * count, dtype=np.int64)
        numbers[:_REST] = self._wrong
        numbers[_OFF] = self.faults.gave_up
        per_request = numbers[_HEAD:].reshape(3, count)
        if self.collectives.ranks.rank == 0:
            numbers[_REST] = self._resting.left
            if planned is not None:
                per_request[:, planned.members] = planned.depths, planned.chains, planned.due
        try:
            self.collectives.ranks.add(numbers)
        except Exception as error:
            raise OutOfStep(f"DiffSpec: ranks cannot agree on a step: {error}") from error
        mine, self._wrong = self._wrong.any(), np.zeros(_REST, dtype=np.int64)
        written, self._written = self._written, []
        self._recovers = bool(numbers[:_REST].any())
        self._skips = bool(numbers[_UNREAD])
        if not self._recovers:
            rest = int(numbers[_REST])
            self._resting.grant(rest, self.slots.last_slots, rest)
            return self._told(*per_request)
        self._resting.left = 0
        if not mine:
            self.faults.record("keeping step", RuntimeError("another rank failed, see its log"))
        if numbers[_OFF]:
            self._give_up()
            return None
        self.slots.drop_all()
        if numbers[_UNREAD]:  # not every rank knows who is new in it
            for request_id in self.slots.owners():
                self.finished(request_id)
        if numbers[_UNREAD] or numbers[_UNWRITTEN]:
            self._mark_lost(torch.cat(written + [host_slots] * self._skips))
        return None

    def _told(self, depths: IntArray, chains: IntArray, due: IntArray) -> Work | None:
        members = np.flatnonzero(chains)
        if not members.size:
            return None
        slots = self.slots.last_slots[members]
        order = np.argsort(slots)
        members, slots = members[order], slots[order]
        return Work(members, slots, depths[members], chains[members], due[members] > 0)

    def _give_up(self) -> None:
        self._off = True
        self.faults.give_up("a rank has given up")
        if self._pending is not None:
            self._pending.clear()

    def _rests_on(self) -> bool:
        return False  # ranks agree on that in a step

    def _went_well(self) -> None:
        # A step in which nobody drafts because the last one failed shows nothing.
        if not self._recovers:
            super()._went_well()

    def _ingest(self, batch: StepBatch, *, wait: bool) -> Projection | None:
        if self._off or self._skips:
            return None
        pending = self._pending
        if pending is not None:
            if wait and batch.drafting.all() and pending.fits(len(batch.slots)):
                self._put_aside(batch.token_ids, batch.features, batch.slots)
                return None
            if pending.count:
                self._will_write(pending.rows()[2])
        self._will_write(batch.slots)
        return super()._ingest(batch, wait=False)

    def _will_write(self, slots: Tensor) -> None:
        self._calls.append(("embed", len(slots)))
        self._written.append(slots.clone())  # the host uses its buffer again

    def _put_aside(self, token_ids: Tensor, features: Tensor, slots: Tensor) -> None:
        """Put rows aside; whether there is room is known."""
        assert self._pending is not None
        after = self._pending.count + len(slots)
        try:
            self._pending.put(token_ids, features, slots)
        except Exception as error:
            self.faults.record("putting rows aside", error)
            self.faults.give_up("which draft rows can be trusted is not known any more")
            self._pending.count = after  # in step with the others until they know
