# SPDX-License-Identifier: Apache-2.0
"""One drafting cycle: plan, ingest, retrieve, rebuild or append, draft.

Called once per verification step with the whole batch. It never raises: a fault costs the step
its drafts, and the verified output does not depend on drafts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from diffspec.adaptive_depth.interval import RetrievalInterval
from diffspec.adaptive_depth.policy import DepthPolicy, StepTimes
from diffspec.compact_kv.canonical import CanonicalCache
from diffspec.proposer.batch import BoolArray, IntArray, StepBatch
from diffspec.proposer.chain import draft_chain
from diffspec.proposer.counters import ZERO_REASONS, Counters
from diffspec.proposer.faults import FaultLog
from diffspec.proposer.head import DraftHead, Projection
from diffspec.proposer.pending import PendingRows
from diffspec.proposer.refresh import Refresh
from diffspec.proposer.resting import Resting
from diffspec.proposer.slots import NOT_DENSE, NOTHING, SlotTable
from diffspec.proposer.submission import Submission
from diffspec.proposer.working_set import WorkingSet

logger = logging.getLogger("vllm.diffspec")

NO_GAIN, NO_SLOT, LENGTH_LIMIT, FAULT, MEASURING, NOT_READY, UNSURE = map(
    ZERO_REASONS.index,
    ("no_gain", "no_slot", "length_limit", "fault", "measuring", "not_ready", "unsure"),
)


@dataclass(frozen=True, slots=True)
class Work:
    """Who drafts in this step: members ``[m]`` of the batch in the order of their ``slots``
    ``[m]``, the depths ``[m]`` they may submit, the tokens ``[m]`` they draft, at least 1 each (a
    shadow draft submits nothing), and whose working caches ``[m]`` are due to be made anew."""

    members: IntArray
    slots: IntArray
    depths: IntArray
    chains: IntArray
    due: BoolArray


class DraftingCycle:
    """Drafts for a batch of requests out of their working caches.

    Args:
        interval: when selections are due; the configured interval, never stretched, if None.
        pending: where rows wait while nobody drafts; every row is projected at once if None.

    Attributes:
        slots: who owns which slot.
        working_set: the working caches and their retrieval.
        submission: what becomes of drafted chains.
        faults: what went wrong so far.
        counters: what was done so far.
    """

    #: Whether a chain may end before its planned depth, where the device allows that.
    _may_stop = True

    def __init__(
        self,
        head: DraftHead,
        working_set: WorkingSet,
        policy: DepthPolicy,
        interval: RetrievalInterval | None = None,
        pending: PendingRows | None = None,
    ) -> None:
        self.head, self.working_set, self.policy = head, working_set, policy
        self.geometry = working_set.geometry
        self.slots = SlotTable(working_set.working.k.shape[0])
        self.interval = interval or RetrievalInterval(
            self.slots.count, interval=self.geometry.interval
        )
        self.faults = FaultLog()
        self.counters = Counters.of_depth(self.geometry.depth)
        self._pending = pending
        self._canonical: CanonicalCache | None = None
        self._step: StepTimes | None = None
        self.submission = Submission(self.slots, self.counters)
        self._refresh = Refresh(self.slots, working_set, self.interval, self.counters)
        self._resting = Resting(self.counters, self.faults)
        # Requests and tokens of the last step; how much of a selection stays, lately.
        self._load = (0, 0)
        self._stability = float("nan")
        # Seconds of this step that went into rows that had waited.
        self._late = 0.0
        # Why each request of the step has no drafts, if it has none.
        self._why: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def bound(self) -> bool:
        """Whether :meth:`bind` was called."""
        return self._canonical is not None

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes held for good, by buffer."""
        waiting = {} if self._pending is None else {"waiting rows": self._pending.nbytes}
        return {**self.working_set.nbytes, **waiting}

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
        self.head.best_tokens(hidden, [])

    def bind(self, canonical: CanonicalCache) -> None:
        """Use these canonical pages from now on."""
        self._canonical = canonical
        self.working_set.bind(canonical)

    def run(self, batch: StepBatch) -> list[list[int]]:
        """Ingest the step's rows and draft; returns token ids per request, empty where none."""
        self._resting.wake(self.policy)
        drafts: list[list[int]] = [[] for _ in batch.request_ids]
        faults = self.faults.total
        before = self.counters.rebuilds, self.counters.seconds["draft"]
        self.submission.begin()
        self._late = 0.0
        self.counters.scheduled += int(batch.drafted.sum())
        self.counters.accepted += int(batch.accepted.sum())
        # Whatever is to be drafted and then is not has met a fault.
        self._why = np.full(len(batch.request_ids), FAULT)
        begin = time.perf_counter()
        work = self._plan(batch)
        self.counters.seconds["plan"] += time.perf_counter() - begin
        projection = self._ingest(batch, wait=work is None)
        if work is not None and projection is not None:
            try:
                self._draft(batch, work, projection, drafts)
            except Exception as error:
                self.faults.record("drafting", error)
                self.slots.drop_all()
                drafts = [[] for _ in batch.request_ids]
        if self.faults.total == faults:
            self._went_well()
        self._note(batch, drafts, *before)
        self._resting.begin()
        return drafts

    def numbers(self) -> dict[str, float]:
        """Everything there is to report, by flat key of ``diffspec.metrics``; may wait for the
        device, so not to be asked for in every step."""
        self._resting.settle(self.policy)
        held = self.slots.end != NOTHING
        return {
            **self.counters.flat(),
            **self.faults.flat(),
            **(self.policy.gauges(*self._load) if self._load[0] else {}),
            "rows_changed": float(self.working_set.rows_changed),
            "stability": self._stability,
            "working_tokens": float(self.slots.rows[held].sum()),
            "slots_used": float(len(self.slots)),
            "off": float(self.faults.gave_up),
        }

    def rests(self, request_ids: Sequence[str]) -> bool:
        """Whether a step of these requests without drafts, one row each, needs no :meth:`run`: its
        rows may be given to :meth:`rest`."""
        return request_ids == self.slots.last_ids and (self._resting.left > 0 or self._rests_on())

    def rest(self, token_ids: Tensor, features: Tensor, slots: Tensor) -> bool:
        """Put aside one row of each request, see :class:`PendingRows`; False, and nothing is done,
        if :meth:`run` has to be called all the same."""
        if self._pending is None:
            return False
        if not self._pending.put(token_ids, features, slots):
            self.flush()  # ends the rest if it fails
            if not self._resting.left or not self._pending.put(token_ids, features, slots):
                return False
        self._resting.take()
        return True

    def timed_rest(self, *, verify: float, propose: float) -> None:
        """What the host measured of a step that :meth:`rest` took in, in seconds."""
        self.counters.seconds["verify"] += verify
        self._resting.timed(propose)

    def timed(self, *, verify: float, propose: float, gap: float | None) -> None:
        """What the host measured of the step that :meth:`run` just ended, in seconds; see
        :class:`~diffspec.adaptive_depth.policy.StepTimes`."""
        if self._step is None:
            return
        step, self._step = self._step, None
        self.counters.seconds["verify"] += verify
        try:
            # Waiting rows would have been written without this step, too.
            propose = max(propose - self._late, 0.0)
            self.policy.timed(replace(step, verify=verify, propose=propose, gap=gap))
        except Exception as error:
            self.faults.record("timing steps", error)

    def finished(self, request_id: str) -> None:
        """Free what a finished or aborted request held."""
        self._resting.wake(self.policy)
        slot = self.slots.release(request_id)
        if slot >= 0:
            self.policy.forget(slot)
            self.interval.forget(slot)
            self.submission.tails.forget(slot)

    def lost(self, host_slots: Tensor, error: BaseException) -> None:
        """The rows at ``host_slots`` ``[n]`` were not ingested, and those that wait will not be:
        never attend their pages."""
        self.faults.record("ingesting verified rows", error)
        self._resting.left = 0
        self.slots.drop_all()
        self._mark_lost(host_slots)

    def unusable(self, count: int, host_slots: Tensor, error: BaseException) -> list[list[int]]:
        """Instead of :meth:`run` where ``error`` let no batch be made of a step of ``count``
        requests, with rows at ``host_slots`` ``[n]``; returns as many empty drafts."""
        self.lost(host_slots, error)
        return [[] for _ in range(count)]

    def _mark_lost(self, host_slots: Tensor) -> None:
        try:
            if self._canonical is not None:
                if self._pending is not None:
                    host_slots = torch.cat((self._pending.rows()[2], host_slots))
                    self._pending.clear()
                self._canonical.mark_holes(host_slots)
        except Exception as second:
            # Nobody knows now which rows can be trusted.
            self.faults.record("marking rows as lost", second)
            self.faults.give_up("which draft rows can be trusted is not known any more")

    def flush(self) -> None:
        """Write the rows that wait. To be called before pages change hands: a page that was freed
        may be another layer's, or another request's, from the next forward pass on."""
        begin = time.perf_counter()
        try:
            self._write_waiting()
        except Exception as error:
            assert self._pending is not None  # or there was nothing to fail
            self.lost(self._pending.rows()[2][:0], error)
        finally:
            self.counters.seconds["ingest"] += time.perf_counter() - begin

    # Steps of a cycle.

    def _went_well(self) -> None:
        self.faults.clear_run()

    def _rests_on(self) -> bool:
        return self._resting.go_on(self.policy)

    def _plan(self, batch: StepBatch) -> Work | None:
        """Learn from the step and decide who drafts; None if nobody does."""
        if self.faults.gave_up:
            return None
        try:
            slots = self.slots.of(batch.request_ids, batch.drafting)
            self._learn(batch, slots)
            return self._decide(batch, slots)
        except Exception as error:
            self.faults.record("planning", error)
            return None

    def _learn(self, batch: StepBatch, slots: IntArray) -> None:
        if without := int(np.count_nonzero(batch.drafting & (slots < 0))):
            if not self.counters.zero["no_slot"]:
                logger.warning(
                    "DiffSpec: all %d drafting slots are taken; %d requests go on without drafts "
                    "(said once)",
                    self.slots.count,
                    without,
                )
            self._why[slots < 0] = NO_SLOT
        sent = self.submission.tails.sent(slots, batch)
        beyond = self.submission.tails.compare(slots, batch)
        seen = np.flatnonzero((sent > 0) | (beyond >= 0))
        if seen.size:
            at, drafted, accepted = slots[seen], sent[seen], batch.accepted[seen]
            self.policy.observe(at, drafted, accepted, beyond[seen])
            ours = drafted > 0
            self.interval.observe(at[ours], drafted[ours], accepted[ours])
        if self.slots.shadows:
            ended = self.slots.compare_shadows(slots, batch.lengths, batch.sampled)
            if ended[0].size:
                self.counters.shadow_hits += int(ended[2].sum())
                self.policy.observe_shadows(*ended)

    def _decide(self, batch: StepBatch, slots: IntArray) -> Work | None:
        members = np.flatnonzero(batch.drafting & (slots >= 0))
        if not members.size:
            return None
        members = members[np.argsort(slots[members])]  # neighbouring slots are used in place
        # The last position a token may take is max_model_len - 1; the next one is not drafted.
        room = self.geometry.max_model_len - 1 - batch.lengths[members]
        left, room = room, np.clip(room, 0, self.geometry.depth)
        others = batch.drafting & (slots < 0)
        plan = self.policy.plan(
            slots[members],
            batch.lengths[members],
            room,
            others=int(np.count_nonzero(others)),
            others_context=int(batch.lengths[others].sum()),
        )
        depths = np.minimum(plan.depths, room)
        secret = np.minimum(plan.shadows, room)
        if self.slots.shadows:  # one comparison at a time
            secret[np.isin(slots[members], list(self.slots.shadows))] = 0
        chains = np.where(depths > 0, depths, secret)
        self._why[members[depths == 0]] = MEASURING if plan.measuring else NO_GAIN
        self._why[members[room == 0]] = LENGTH_LIMIT
        keep = chains > 0
        if not keep.any():
            everyone = len(members) == len(batch.request_ids)
            compared = not self.slots.shadows.keys().isdisjoint(slots[members].tolist())
            if plan.rest and everyone and not compared:
                self._resting.grant(plan.rest, slots[members], int(left.min()) - 1)
            return None
        members = members[keep]
        due = self._refresh.due(batch, members, slots[members])
        return Work(members, slots[members], depths[keep], chains[keep], due)

    def _ingest(self, batch: StepBatch, *, wait: bool) -> Projection | None:
        """Write the step's rows to the canonical cache; None if they wait or are lost."""
        begin = time.perf_counter()
        try:
            pending = self._pending
            rows = batch.token_ids, batch.features, batch.slots
            if wait and pending and batch.drafting.all() and pending.put(*rows):
                return None
            self._write_waiting()
            return self._write(*rows)
        except Exception as error:
            self.lost(batch.slots, error)
            return None
        finally:
            self.counters.seconds["ingest"] += time.perf_counter() - begin

    def _write_waiting(self) -> None:
        """Write what waits; if that fails it waits on, for :meth:`lost`."""
        if self._pending is not None and self._pending.count:
            begin = time.perf_counter()
            self._write(*self._pending.rows())
            self._pending.clear()
            self._late += time.perf_counter() - begin

    def _write(self, tokens: Tensor, features: Tensor, slots: Tensor) -> Projection:
        assert self._canonical is not None, "bind() comes first"
        projection = self.head.project(tokens, self.head.parts.combine(features))
        self._canonical.write(slots, projection.k, projection.v)
        return projection

    def _draft(
        self, batch: StepBatch, work: Work, projection: Projection, drafts: list[list[int]]
    ) -> None:
        ready, rebuilt = self._refresh.run(batch, work.members, work.slots, work.due, projection)
        self._why[work.members[~ready & (work.depths > 0)]] = NOT_READY
        members, at = work.members[ready], work.slots[ready]
        depths, chains = work.depths[ready], work.chains[ready]
        if not members.size:
            return
        begin = time.perf_counter()
        last = batch.row_starts[members + 1] - 1
        working = self.working_set.working
        chain = draft_chain(
            *(self.head, working, projection, last, at, self.slots.rows[at], chains),
            self.policy.gate(at, depths),
            may_stop=self._may_stop,
        )
        self.counters.seconds["draft"] += time.perf_counter() - begin
        if rebuilt.size:  # the device has just been waited for
            kept = self.working_set.kept(rebuilt)
            self.interval.selected(rebuilt, kept)
            if (known := ~np.isnan(kept)).any():
                self._stability = float(kept[known].mean())
        self._why[self.submission.take(batch, members, at, depths, chain, drafts)] = UNSURE

    def _note(
        self,
        batch: StepBatch,
        drafts: list[list[int]],
        rebuilds: int,
        drafting: float,
    ) -> None:
        """Count the depths, and keep what this step was for :meth:`timed`; the last two are
        counters as they stood before it."""
        depths = np.fromiter(map(len, drafts), dtype=np.int64, count=len(drafts))
        self.counters.depths += np.bincount(
            depths[batch.drafting], minlength=len(self.counters.depths)
        )
        self.counters.without(self._why[batch.drafting & (depths == 0)])
        kept = int((batch.accepted + 1)[batch.drafting].sum())
        self._load = len(drafts), int(batch.lengths.sum())
        self._step = StepTimes(
            requests=self._load[0],
            rows=int(batch.drafted.sum()) + len(drafts),
            context=self._load[1],
            decoding=bool(batch.drafting.all()) and kept == int(batch.row_starts[-1]),
            verify=0.0,
            propose=0.0,
            draft=self.counters.seconds["draft"] - drafting,
            gap=None,
            depth=self.submission.depth,
            rebuilt=self.counters.rebuilds > rebuilds,
            shadow=self.submission.shadow_depth,
            secrets=self.submission.secrets,
        )
