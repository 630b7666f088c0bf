# SPDX-License-Identifier: Apache-2.0
"""One drafting cycle: ingest, retrieve, rebuild or append, draft.

Called once per verification step with the whole batch. It never raises: a fault costs the step
its drafts, and the verified output does not depend on drafts.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

from diffspec.adaptive_depth.interval import RetrievalInterval
from diffspec.adaptive_depth.policy import DepthPolicy
from diffspec.compact_kv.canonical import CanonicalCache
from diffspec.proposer.batch import BoolArray, IntArray, StepBatch, on_device
from diffspec.proposer.counters import Counters
from diffspec.proposer.faults import FaultLog
from diffspec.proposer.head import DraftHead, Projection
from diffspec.proposer.slots import NOT_DENSE, NOTHING, SlotTable, first_if_consecutive
from diffspec.proposer.working_set import WorkingSet

logger = logging.getLogger("vllm.diffspec")


class DraftingCycle:
    """Drafts for a batch of requests out of their working caches.

    Args:
        interval: when selections are due; the configured interval, never stretched, if None.

    Attributes:
        slots: who owns which slot.
        working_set: the working caches and their retrieval.
        faults: what went wrong so far.
        counters: what was done so far.
    """

    def __init__(
        self,
        head: DraftHead,
        working_set: WorkingSet,
        policy: DepthPolicy,
        interval: RetrievalInterval | None = None,
    ) -> None:
        self.head, self.working_set, self.policy = head, working_set, policy
        self.geometry = working_set.geometry
        self.slots = SlotTable(working_set.working.k.shape[0])
        self.interval = interval or RetrievalInterval(
            self.slots.count, interval=self.geometry.interval
        )
        self.faults = FaultLog()
        self.counters = Counters()
        self._canonical: CanonicalCache | None = None

    @property
    def bound(self) -> bool:
        """Whether :meth:`bind` was called."""
        return self._canonical is not None

    def rehearse(self, projection: Projection) -> None:
        """Take the temporary memory of the largest rebuild and draft step there can be.

        For a host that measures memory before it allocates its pages. The working caches must be
        zero, as they are then, and stay so.

        Args:
            projection: of any rows; a draft step is run for at most as many slots.
        """
        working, parts = self.working_set.working, self.head.parts
        self.working_set.rehearse()
        count = min(self.slots.count, projection.residual.shape[0])
        slots, budget = torch.arange(count, device=working.k.device), self.geometry.budget
        attention = working.attend(
            projection.qk[:count, : parts.query_heads],
            slots,
            torch.full_like(slots, budget),
            budget,
            parts.scale,
            NOT_DENSE,
        )
        hidden, _ = self.head.finish(attention, projection.residual[:count])
        self.head.best_tokens(hidden)

    def bind(self, canonical: CanonicalCache) -> None:
        """Use these canonical pages from now on."""
        self._canonical = canonical
        self.working_set.bind(canonical)

    def run(self, batch: StepBatch) -> list[list[int]]:
        """Ingest the step's rows and draft; returns token ids per request, empty where none."""
        nothing: list[list[int]] = [[] for _ in batch.request_ids]
        try:
            projection = self._ingest(batch)
        except Exception as error:
            self.lost(batch.slots, error)
            return nothing
        if self.faults.gave_up:
            return nothing
        try:
            drafts = self._draft(batch, projection, nothing)
        except Exception as error:
            self.faults.record("drafting", error)
            self.slots.drop_all()
            return nothing
        self.faults.clear_run()
        return drafts

    def finished(self, request_id: str) -> None:
        """Free what a finished or aborted request held."""
        slot = self.slots.release(request_id)
        if slot >= 0:
            self.policy.forget(slot)
            self.interval.forget(slot)

    def lost(self, host_slots: Tensor, error: BaseException) -> None:
        """The rows at ``host_slots`` ``[n]`` were not ingested: never attend their pages."""
        self.faults.record("ingesting verified rows", error)
        self.slots.drop_all()
        try:
            if self._canonical is not None:
                self._canonical.mark_holes(host_slots)
        except Exception as second:
            # Nobody knows now which rows can be trusted.
            self.faults.record("marking rows as lost", second)
            self.faults.give_up("which draft rows can be trusted is not known any more")

    def _ingest(self, batch: StepBatch) -> Projection:
        assert self._canonical is not None, "bind() comes first"
        head = self.head
        projection = head.project(batch.token_ids, head.parts.combine(batch.features))
        self._canonical.write(batch.slots, projection.k, projection.v)
        return projection

    def _draft(
        self, batch: StepBatch, projection: Projection, drafts: list[list[int]]
    ) -> list[list[int]]:
        slots = self.slots.of(batch.request_ids, batch.drafting)
        if without := int(np.count_nonzero(batch.drafting & (slots < 0))):
            if not self.counters.no_slot:
                logger.warning(
                    "DiffSpec: all %d drafting slots are taken; %d requests go on without drafts "
                    "(said once)",
                    self.slots.count,
                    without,
                )
            self.counters.no_slot += without
        seen = np.flatnonzero((batch.drafted > 0) & (slots >= 0))
        if seen.size:
            feedback = slots[seen], batch.drafted[seen], batch.accepted[seen]
            self.policy.observe(*feedback)
            self.interval.observe(*feedback)

        members = np.flatnonzero(batch.drafting & (slots >= 0))
        members = members[np.argsort(slots[members])]  # neighbouring slots are used in place
        depths = self.policy.depths(slots[members], batch.lengths[members])
        # The last position a token may take is max_model_len - 1; the next one is not drafted.
        room = self.geometry.max_model_len - 1 - batch.lengths[members]
        depths = np.minimum(np.minimum(depths, self.geometry.depth), room)
        members, depths = members[depths > 0], depths[depths > 0]
        if not members.size:
            return drafts
        ready = self._refresh(batch, members, slots[members], projection)
        members, depths = members[ready], depths[ready]
        if not members.size:
            return drafts

        tokens = self._chain(batch, members, slots[members], projection, int(depths.max()))
        for index, row, depth in zip(members, tokens.tolist(), depths, strict=True):
            drafts[index] = row[:depth]
        self.counters.drafted += int(depths.sum())
        return drafts

    def _refresh(
        self, batch: StepBatch, members: IntArray, slots: IntArray, projection: Projection
    ) -> BoolArray:
        """Bring the working caches up to this step; returns which members can be drafted."""
        table, geometry = self.slots, self.geometry
        lengths = batch.lengths[members]
        new = batch.row_starts[members + 1] - batch.row_starts[members]
        current = table.end[slots] == lengths - new
        rows = table.rows[slots] + new
        ahead = rows - table.base[slots] + geometry.depth
        overdue = self.interval.overdue(slots, table.steps[slots] + 1, ahead) & (rows != lengths)
        due = ~current | overdue | (rows + geometry.depth - 1 > geometry.budget)

        keep, redo = np.flatnonzero(~due), np.flatnonzero(due)
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
            self.counters.rebuilds += int(redo.size)
            compact = ~geometry.whole(lengths[redo])
            self.counters.retrievals += int(np.count_nonzero(compact))
        ready: BoolArray = table.rows[slots] > 0
        table.end[slots] = np.where(ready, lengths, NOTHING)
        return ready

    def _chain(
        self,
        batch: StepBatch,
        members: IntArray,
        slots: IntArray,
        projection: Projection,
        depth: int,
    ) -> Tensor:
        """Draft a chain of ``depth`` tokens for each member; ``[m, depth]`` int64."""
        working, head = self.working_set.working, self.head
        device = working.k.device
        last = on_device(batch.row_starts[members + 1] - 1, device)
        slot = on_device(slots, device)
        rows = self.slots.rows[slots]
        longest = int(rows.max())
        dense = first_if_consecutive(slots)

        counts = on_device(rows, device)
        heads, scale = head.parts.query_heads, head.parts.scale
        # The newest committed row is its own first query; later queries sit on scratch rows.
        q = working.rope.rotate(projection.qk[last, :heads], counts - 1)
        residual = projection.residual[last]
        tokens = []
        for step in range(depth):
            attention = working.attend(q, slot, counts, longest + step, scale, dense)
            hidden, feature = head.finish(attention, residual)
            tokens.append(head.best_tokens(hidden))
            if step + 1 < depth:
                new = head.project(tokens[-1], feature)
                turned = working.rope.rotate(new.qk, counts)
                q, k = turned[:, :heads], turned[:, heads:]
                if len(slots) == 1:
                    working.put_one(dense, longest + step, k[0], new.v[0])
                else:
                    working.put(slot, counts, k, new.v)
                residual = new.residual
                counts = counts + 1
        return torch.stack(tokens, dim=1)
