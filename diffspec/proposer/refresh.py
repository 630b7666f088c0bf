# SPDX-License-Identifier: Apache-2.0
"""Which working caches are made anew in a step, and bringing all of them up to it."""

from __future__ import annotations

import time

import numpy as np

from diffspec.adaptive_depth.interval import RetrievalInterval
from diffspec.proposer.batch import BoolArray, IntArray, StepBatch
from diffspec.proposer.counters import Counters
from diffspec.proposer.head import Projection
from diffspec.proposer.slots import NOTHING, SlotTable
from diffspec.proposer.working_set import WorkingSet


class Refresh:
    """Keeps the slots of ``table`` and their working caches current.

    The decision, :meth:`due`, takes numbers on the host alone; it is made before a step's first
    row is written, so that ranks can agree on it.
    """

    def __init__(
        self,
        table: SlotTable,
        working_set: WorkingSet,
        interval: RetrievalInterval,
        counters: Counters,
    ) -> None:
        self.table, self.working_set = table, working_set
        self.interval, self.counters = interval, counters

    def due(self, batch: StepBatch, members: IntArray, slots: IntArray) -> BoolArray:
        """Which of ``members`` ``[m]``, in ``slots`` ``[m]``, are to be made anew."""
        table, geometry = self.table, self.working_set.geometry
        lengths = batch.lengths[members]
        current, rows = self._appended(batch, members, slots)
        ahead = rows - table.base[slots] + geometry.depth
        overdue = self.interval.overdue(slots, table.steps[slots] + 1, ahead) & (rows != lengths)
        due: BoolArray = ~current | overdue | (rows + geometry.depth - 1 > geometry.budget)
        return due

    def run(
        self,
        batch: StepBatch,
        members: IntArray,
        slots: IntArray,
        due: BoolArray,
        projection: Projection,
    ) -> tuple[BoolArray, IntArray]:
        """Append to the working caches that are not ``due`` ``[m]``, make the others anew.

        Returns:
            Which members ``[m]`` can be drafted, and the slots whose selection was made anew by
            scoring.
        """
        begin, choosing = time.perf_counter(), self.working_set.choosing
        table, geometry = self.table, self.working_set.geometry
        lengths = batch.lengths[members]
        current, rows = self._appended(batch, members, slots)
        keep, redo = np.flatnonzero(~due), np.flatnonzero(due)
        scored = slots[:0]
        if keep.size:
            at = slots[keep]
            self.working_set.append(batch, members[keep], at, table.rows[at], projection)
            table.rows[at] = rows[keep]
            table.steps[at] += 1
        if redo.size:
            at = slots[redo]
            table.end[at] = NOTHING
            if not current[redo].all():
                self.working_set.clear(at[~current[redo]])
            table.rows[at] = table.base[at] = self.working_set.rebuild(batch, members[redo], at)
            self.interval.renewed(at)
            # A first rebuild starts each slot at another step: retrievals spread over steps.
            table.steps[at] = np.where(current[redo], 0, at % geometry.interval)
            scored = at[~geometry.whole(lengths[redo])]
            self.counters.rebuilds += int(redo.size)
            self.counters.retrievals += int(scored.size)
        ready: BoolArray = table.rows[slots] > 0
        table.end[slots] = np.where(ready, lengths, NOTHING)
        choosing = self.working_set.choosing - choosing
        self.counters.seconds["retrieve"] += choosing
        self.counters.seconds["rebuild"] += time.perf_counter() - begin - choosing
        return ready, scored

    def _appended(
        self, batch: StepBatch, members: IntArray, slots: IntArray
    ) -> tuple[BoolArray, IntArray]:
        """Whether each working cache ends where this step began, and its rows after it."""
        new = batch.row_starts[members + 1] - batch.row_starts[members]
        current: BoolArray = self.table.end[slots] == batch.lengths[members] - new
        return current, self.table.rows[slots] + new
