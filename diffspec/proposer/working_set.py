# SPDX-License-Identifier: Apache-2.0
"""Keeps each slot's working cache current: append accepted rows, or retrieve and rebuild."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffspec.compact_kv.canonical import CanonicalCache
from diffspec.compact_kv.working import WorkingCache
from diffspec.proposer.batch import BoolArray, FloatArray, IntArray, StepBatch, on_device
from diffspec.proposer.head import Projection
from diffspec.proposer.slots import NOT_DENSE, first_if_consecutive
from diffspec.retrieval.scoring import ChunkScorer
from diffspec.retrieval.selection import SelectionPlan, select_chunks

#: Most bytes gathered from canonical pages in one pass of a rebuild.
GATHER_BYTES = 64 << 20

#: (query, block_table, lengths, longest) → masses; see :meth:`ChunkScorer.masses`.
MassFunction = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes that never change while an engine lives (tokens unless named otherwise).

    ``depth`` is K, the most tokens drafted in one cycle; ``interval`` is in verification steps.
    """

    chunk: int
    budget: int
    interval: int
    depth: int
    max_model_len: int

    def whole(self, lengths: IntArray) -> np.ndarray:
        """Whether contexts of these lengths fit the budget together with the scratch rows."""
        fits: np.ndarray = lengths + self.depth - 1 <= self.budget
        return fits


class WorkingSet:
    """The working caches of all slots and the retrieval that fills them.

    Attributes:
        masses: what selection ranks chunks by; replaced by benchmarks and tests to ablate
            retrieval, never by configuration.
        choosing: seconds spent on scoring and selecting so far.
    """

    def __init__(
        self,
        geometry: Geometry,
        plan: SelectionPlan,
        working: WorkingCache,
        scorer: ChunkScorer,
    ) -> None:
        self.geometry, self.plan, self.working, self.scorer = geometry, plan, working, scorer
        self.masses: MassFunction = scorer.masses
        self.choosing = 0.0
        slots, heads, budget, head_dim = working.k.shape
        device = working.k.device
        chunks = -(-geometry.max_model_len // geometry.chunk)
        self._present = torch.zeros((slots, chunks), dtype=torch.bool, device=device)
        row = 2 * heads * head_dim
        self._kept = torch.zeros(slots, device=device)
        self._changed = torch.zeros((), dtype=torch.int64, device=device)
        fit = GATHER_BYTES // (budget * row * working.k.dtype.itemsize)
        self._group = max(1, min(scorer.max_requests, fit))
        self._gathered = torch.zeros(
            self._group * budget * row, dtype=working.k.dtype, device=device
        )
        self._in_chunk = torch.arange(geometry.chunk, device=device)
        self._canonical: CanonicalCache | None = None

    def rehearse(self) -> None:
        """The largest rebuild, of zeros into caches of zeros, for the memory it takes meanwhile."""
        working = self.working
        count, heads, budget, head_dim = working.k.shape
        group = min(self._group, count)
        rows = self._gathered[: group * budget * 2 * heads * head_dim]
        slots = torch.arange(group, device=working.k.device)
        working.rebuild(slots, rows.view(group, budget, 2, heads, head_dim), NOT_DENSE)

    def bind(self, canonical: CanonicalCache) -> None:
        """Rebuild from these canonical rows from now on."""
        self._canonical = canonical

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes held for good, by buffer."""
        return {
            "working cache": self.working.nbytes,
            "gather buffer": self._gathered.nbytes,
            "retrieval workspace": self.scorer.nbytes + self._present.nbytes,
        }

    def kept(self, slots: IntArray) -> FloatArray:
        """Share ``[m]`` of each slot's last selection that was in the one before it.

        Waits for the device; NaN where there was none before, or none that could be kept: after a
        pause or a preemption, too."""
        share: FloatArray = self._kept[on_device(slots, self._kept.device)].cpu().numpy()
        return share

    @property
    def rows_changed(self) -> int:
        """Rows that selections replaced of those before them so far, in whole chunks; waits for
        the device."""
        return int(self._changed) * self.geometry.chunk

    def append(
        self, batch: StepBatch, members: IntArray, slots: IntArray, rows: IntArray, new: Projection
    ) -> None:
        """Append this step's verified rows of some requests.

        Args:
            members: ``[m]``, indices into the batch.
            slots, rows: ``[m]``, their slots and committed rows so far.
            new: the projection of all of the batch's rows.
        """
        counts = batch.row_starts[members + 1] - batch.row_starts[members]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        device = self.working.k.device
        source, slot, position = (
            on_device(np.repeat(base, counts) + extra, device)
            for base, extra in (
                (batch.row_starts[members], within),
                (slots, np.int64(0)),
                (rows, within),
            )
        )
        k, v = new.k, new.v
        # Members come in slot order; only all rows in batch order need no look-up.
        if source.shape[0] != k.shape[0] or (np.diff(members) < 0).any():
            k, v = k[source], v[source]
        self.working.put(slot, position, self.working.rope.rotate(k, position), v)

    def clear(self, slots: IntArray) -> None:
        """Forget what ``slots`` ``[m]`` held: chunks of another request earn no loyalty."""
        at = on_device(slots, self.working.k.device)
        self._present[at] = False
        self.working.clear(at)

    def rebuild(self, batch: StepBatch, members: IntArray, slots: IntArray) -> IntArray:
        """Select and gather anew; returns the rows ``[m]`` each working cache now holds.

        A request whose newest rows lie in a hole gets 0 rows and cannot be drafted now.
        """
        rows = np.zeros(len(members), dtype=np.int64)
        for first in range(0, len(members), self._group):
            part = slice(first, first + self._group)
            rows[part] = self._rebuild(batch, members[part], slots[part])
        return rows

    def scored(self, lengths: IntArray) -> list[tuple[int, int]]:
        """The shapes of the masses that a :meth:`rebuild` of such contexts ``[m]`` asks for."""
        shapes = []
        for first in range(0, len(lengths), self._group):
            part = lengths[first : first + self._group]
            if (compact := part[~self.geometry.whole(part)]).size:
                shapes.append((len(compact), -(-int(compact.max()) // self.geometry.chunk)))
        return shapes

    def ends_in_hole(self, batch: StepBatch, members: IntArray) -> BoolArray:
        """Whether the newest rows of each of ``members`` ``[m]`` lie in a hole; waits for the
        device where there are holes at all."""
        lengths = batch.lengths[members]
        device = self.working.k.device
        last = -(-lengths // self.geometry.chunk) - 1
        blocked = self._blocked(
            batch.draft_table[on_device(members, device)],
            on_device(lengths, device),
            int(last.max(initial=0)) + 1,
        )
        if blocked is None:
            return np.zeros(len(members), dtype=np.bool_)
        ends: BoolArray = blocked.cpu().numpy()[np.arange(len(members)), last]
        return ends

    def _rebuild(self, batch: StepBatch, members: IntArray, slots: IntArray) -> IntArray:
        assert self._canonical is not None, "bind() comes first"
        geometry, device = self.geometry, self.working.k.device
        lengths = batch.lengths[members]
        member, slot, length = (on_device(a, device) for a in (members, slots, lengths))
        table = batch.draft_table[member]
        begin = time.perf_counter()
        ids, rows = self._choose(batch, member, slot, length, lengths, table)
        self.choosing += time.perf_counter() - begin
        if not rows.any():
            return rows

        position = (ids.unsqueeze(-1) * geometry.chunk + self._in_chunk).flatten(1)
        # Padding repeats the newest row: always written, never attended.
        position = torch.minimum(position[:, : int(rows.max())], length.unsqueeze(-1) - 1)
        size = self._canonical.block_size
        blocks = table.gather(1, position // size).long()
        gathered = self._canonical.gather(
            (blocks * size + position % size).flatten(), self._gathered
        )
        self.working.rebuild(
            slot,
            gathered.view(len(members), -1, *gathered.shape[1:]),
            first_if_consecutive(slots),
        )
        return rows

    def _choose(
        self,
        batch: StepBatch,
        member: Tensor,
        slot: Tensor,
        length: Tensor,
        lengths: IntArray,
        table: Tensor,
    ) -> tuple[Tensor, IntArray]:
        """Chunk numbers ``[m, budget / chunk]`` (padded with large ones) and row counts."""
        geometry, plan = self.geometry, self.plan
        chunk, width = geometry.chunk, geometry.budget // geometry.chunk
        whole = geometry.whole(lengths)
        counts = -(-lengths // chunk)
        most = max(int(counts.max()), width)
        ids = torch.arange(width, device=slot.device).repeat(len(lengths), 1)
        blocked = self._blocked(table, length, most)
        if not whole.all():
            compact = on_device(np.flatnonzero(~whole), slot.device)
            longest = int(lengths[~whole].max())
            count = -(-longest // chunk)
            chosen = select_chunks(
                self.masses(
                    batch.query[member[compact]],
                    batch.target_table[member[compact]],
                    length[compact],
                    longest,
                ),
                (length[compact] + chunk - 1) // chunk,
                plan,
                present=self._present[slot[compact], :count],
                blocked=None if blocked is None else blocked[compact, :count],
            )
            self._remember(slot[compact], chosen, count)
            chosen = torch.where(chosen < count, chosen, most)
            ids[compact] = torch.nn.functional.pad(chosen, (0, width - plan.total), value=most)
        if blocked is None:
            # Known without a look at the device: a compact selection is always full.
            rows = np.where(
                whole, lengths, (plan.total - 1) * chunk + lengths - (counts - 1) * chunk
            )
            return ids, rows
        return self._without_holes(ids, blocked, length, on_device(counts, slot.device), most)

    def _remember(self, slot: Tensor, chosen: Tensor, count: int) -> None:
        rows = torch.zeros(
            (slot.shape[0], self._present.shape[1] + 1), dtype=torch.bool, device=slot.device
        )
        # The padding value may name a real chunk of a longer request: send it past the end.
        at = torch.where(chosen < count, chosen, self._present.shape[1])
        chosen_now = rows.scatter_(1, at, True)[:, :-1]
        before = self._present[slot]
        same, total, known = (chosen_now & before).sum(1), chosen_now.sum(1), before.any(1)
        self._kept[slot] = torch.where(known, same / total, torch.nan)
        self._changed += ((total - same) * known).sum()
        self._present[slot] = chosen_now

    def _blocked(self, table: Tensor, length: Tensor, count: int) -> Tensor | None:
        """``[m, count]`` bool, chunks that overlap a page with a hole; None without holes."""
        canonical = self._canonical
        assert canonical is not None
        if not canonical.has_holes:
            return None
        chunk, size = self.geometry.chunk, canonical.block_size
        first = torch.arange(count, device=table.device) * chunk
        inside = torch.arange(0, chunk, min(chunk, size), device=table.device)
        inside = torch.cat((inside, inside.new_tensor([chunk - 1])))
        pages = (first.unsqueeze(-1) + inside) // size
        # Past a request's last page its table names whatever it named before.
        pages = torch.minimum(pages.flatten(), (length.unsqueeze(-1) - 1) // size)
        holes = canonical.holes[table.gather(1, pages).long()]
        return holes.view(len(table), count, -1).any(-1)

    def _without_holes(
        self, ids: Tensor, blocked: Tensor, length: Tensor, counts: Tensor, most: int
    ) -> tuple[Tensor, IntArray]:
        chunk = self.geometry.chunk
        last = counts.unsqueeze(-1) - 1
        padded = torch.nn.functional.pad(blocked, (0, 1), value=True)
        keep = (ids <= last) & ~padded.gather(1, ids.clamp(max=most))
        ids = torch.where(keep, ids, most).sort(dim=-1).values
        begins = ids * chunk
        rows = (torch.minimum(begins + chunk, length.unsqueeze(-1)) - begins).clamp_(min=0)
        total = torch.where(padded.gather(1, last)[:, 0], 0, rows.sum(-1))
        return ids, total.cpu().numpy()
