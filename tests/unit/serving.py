# SPDX-License-Identifier: Apache-2.0
"""A simulated host: paged caches, chunked prefill, acceptance, preemption, prefix hits.

What the target would compute (features, keys, queries) is a fixed random function of the tokens
up to a position, so that requests that share a prefix share it there. The text is fixed from the
start: how many drafts are "accepted" decides how far a step gets, never what it reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch

from diffspec.adaptive_depth.interval import RetrievalInterval
from diffspec.adaptive_depth.policy import FixedDepth, IntArray, Plan
from diffspec.compact_kv.canonical import CanonicalCache
from diffspec.compact_kv.pages import KeyPages
from diffspec.compact_kv.rope import LocalRope
from diffspec.compact_kv.working import WorkingCache
from diffspec.proposer.batch import StepBatch
from diffspec.proposer.cycle import DraftingCycle
from diffspec.proposer.head import DraftHead
from diffspec.proposer.pending import PendingRows
from diffspec.proposer.ranked_cycle import RankedCycle
from diffspec.proposer.ranks import Collectives
from diffspec.proposer.working_set import Geometry, WorkingSet
from diffspec.retrieval.scoring import ChunkScorer
from diffspec.retrieval.selection import SelectionPlan
from tests.unit import tiny_draft as tiny
from tests.unit.gloo_ranks import WHOLE, Share
from tests.unit.naive import Array

TARGET_HEADS, TARGET_KV, TARGET_DIM = 4, 2, 8
TARGET_SCALE = TARGET_DIM**-0.5
CPU = torch.device("cpu")
_NOTHING = nullcontext()


@dataclass(frozen=True)
class Shape:
    """Sizes of a simulated engine, in tokens unless named otherwise."""

    chunk: int = 4
    page: int = 8
    budget: int = 64
    interval: int = 2
    depth: int = 3
    slots: int = 8
    max_len: int = 150
    blocks: int = 260
    reach: int = 0
    waiting: int = 6

    @property
    def plan(self) -> SelectionPlan:
        """The plan settings would derive: growth and scratch rows are left free."""
        reserve = -(-self.interval * (self.depth + 1) // self.chunk)
        window = max(4, self.budget // 4 // self.chunk)
        picks = (self.budget - self.depth + 1) // self.chunk - reserve - 1 - window
        ahead = -(-(self.interval * (self.depth + 1) + self.depth) // self.chunk)
        return SelectionPlan(sink=1, window=window, picks=picks, successors=ahead)


@dataclass(eq=False)
class Request:
    """A request: its whole text, and how much of it the host knows and has computed."""

    name: str
    text: list[int]
    known: int
    computed: int = 0
    sampled: bool = False
    blocks: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    features: dict[tuple[str, int], Array] = field(default_factory=dict)

    @property
    def decoding(self) -> bool:
        return self.sampled and self.known == self.computed + 1


@dataclass(frozen=True)
class Row:
    """One request's part of a step, for checking afterwards."""

    request: Request
    start: int
    length: int
    drafting: bool
    drafted: int
    accepted: int
    query: Array
    slots: list[int]

    @property
    def sampled(self) -> int:
        """The first token the target sampled in this step."""
        return self.request.text[self.length - self.accepted]

    @property
    def newest(self) -> int:
        """The last token the target sampled in this step."""
        return self.request.text[self.length]


class ScriptedGate:
    """Submits what it is told to, and draws the line after as many draft steps."""

    def __init__(self, submit: IntArray, sure: list[Array], *, stops: bool) -> None:
        self.submit, self.sure, self.stops, self.steps = submit, sure, stops, 0

    def stop(self, sure: Array) -> bool:
        self.steps += 1
        return self.stops and bool((self.submit <= self.steps).all())

    def cut(self, drafted: IntArray, sure: Array) -> IntArray:
        assert sure.shape == (len(drafted), drafted.max())
        self.sure.append(sure)
        return np.minimum(self.submit, drafted)


class ScriptedDepth(FixedDepth):
    """Depth and shadow drafts by slot, set by the test; notes what it is told."""

    def __init__(self, depth: int, slots: int) -> None:
        super().__init__(depth)
        self.by_slot = np.full(slots, depth, dtype=np.int64)
        self.shadow_by_slot = np.zeros(slots, dtype=np.int64)
        #: How much of each chain is submitted; None for all.
        self.submit_by_slot: IntArray | None = None
        #: Whether drafting stops where nothing more is submitted.
        self.stops = False
        #: The confidences of each step's chains.
        self.sure: list[Array] = []
        self.observed: list[tuple[int, int, int, int]] = []
        self.rest_steps = 0
        self.rested_steps = 0
        #: Steps that a rest which is over may go on.
        self.rests_on = 0
        self.observed_shadows: list[tuple[int, int, int]] = []
        self.forgotten: list[int] = []

    def observe(
        self, slots: IntArray, drafted: IntArray, accepted: IntArray, beyond: IntArray
    ) -> None:
        known = (a.tolist() for a in (slots, drafted, accepted, beyond))
        self.observed += zip(*known, strict=True)

    def gate(self, slots: IntArray, planned: IntArray) -> ScriptedGate | None:
        if self.submit_by_slot is None:
            return None
        submit = np.minimum(self.submit_by_slot[slots], planned)
        return ScriptedGate(submit, self.sure, stops=self.stops)

    def observe_shadows(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        ended = zip(slots.tolist(), drafted.tolist(), accepted.tolist(), strict=True)
        self.observed_shadows += ended

    def plan(self, slots: IntArray, lengths: IntArray, room: IntArray, **others: int) -> Plan:
        depths = self.by_slot[slots]
        shadows = np.where(depths > 0, 0, self.shadow_by_slot[slots])
        return Plan(depths, shadows, rest=self.rest_steps)

    def rested(self, slots: IntArray, steps: int, seconds: float, propose: float) -> int:
        assert seconds > 0
        self.rested_steps += steps
        return self.rests_on

    def forget(self, slot: int) -> None:
        self.forgotten.append(slot)


def features_at(request: Request, position: int, what: str, size: int) -> Array:
    """``[size]`` normal numbers that depend on ``what`` and the tokens up to ``position``."""
    found = request.features.get((what, position))
    if found is None:
        tokens = np.asarray(request.text[: position + 1], dtype=np.int32)
        x = np.random.default_rng(zlib.crc32(tokens.tobytes() + what.encode())).normal(size=size)
        found = x.astype(np.float32).astype(np.float64)
        request.features[what, position] = found
    return found


class Host:
    """The engine around one :class:`DraftingCycle`, or one rank's ``share`` of it."""

    def __init__(
        self, shape: Shape, *, seed: int = 0, feed_normed: bool = False, share: Share = WHOLE
    ) -> None:
        self.shape, self.rng, self.share = shape, np.random.default_rng(seed), share
        self.draft = tiny.TinyDraft(seed, feed_normed=feed_normed)
        self.broken: str | None = None
        self.requests: list[Request] = []
        self.free = self.rng.permutation(shape.blocks).tolist()
        self.users = np.zeros(shape.blocks, dtype=np.int64)
        # The scored layer has block numbers of its own.
        self.target_block = self.rng.permutation(shape.blocks)
        self.policy = ScriptedDepth(shape.depth, shape.slots)
        self.rebuilt: set[str] = set()
        #: Whether the last step was to rest.
        self.resting = False
        self._build()

    def _build(self) -> None:
        shape, page = self.shape, self.shape.page
        angles = np.outer(np.arange(shape.budget), tiny.BASE ** (-np.arange(0, 1, 2 / tiny.DIM)))
        table = torch.from_numpy(np.concatenate((np.cos(angles), np.sin(angles)), axis=1))
        parts = self.draft.parts(self._trip, self.share)
        together = None
        if self.share.ranks is not None:
            together = Collectives(
                self.share.ranks, parts, hidden=tiny.HIDDEN, dtype=torch.float32, device=CPU
            )
            parts = together.parts
        heads, kv_heads = self.share.count(TARGET_HEADS), self.share.count(TARGET_KV)
        working = WorkingCache(
            slots=shape.slots, budget=shape.budget, heads=parts.kv_heads, head_dim=tiny.DIM,
            dtype=torch.float32, device=CPU,
            rope=LocalRope(table, neox_style=True, dtype=torch.float32),
        )  # fmt: skip
        scorer = ChunkScorer(
            block_size=page, query_heads=heads, kv_heads=kv_heads, head_dim=TARGET_DIM,
            dtype=torch.float32, scale=TARGET_SCALE, chunk_size=shape.chunk,
            max_model_len=shape.max_len, max_requests=min(8, shape.slots), device=CPU,
            reduce=together.add_masses if together else None, total_query_heads=TARGET_HEADS,
        )  # fmt: skip
        geometry = Geometry(
            chunk=shape.chunk, budget=shape.budget, interval=shape.interval, depth=shape.depth,
            max_model_len=shape.max_len,
        )  # fmt: skip
        self.working_set = WorkingSet(geometry, shape.plan, working, scorer)
        head = DraftHead(parts)
        interval = RetrievalInterval(
            shape.slots, interval=shape.interval, reach=shape.reach or None
        )
        width = tiny.AUX * tiny.TARGET_HIDDEN
        pending = PendingRows(shape.waiting, width, torch.float32, CPU)
        made = (head, self.working_set, self.policy, interval, pending)
        self.cycle = RankedCycle(together, *made) if together else DraftingCycle(*made)

        row = 2 * parts.kv_heads * tiny.DIM
        stride = (page + 2) * row  # padded, and never written: NaN wherever nothing was stored
        storage = torch.full((shape.blocks * stride,), torch.nan)
        pages = storage.as_strided((shape.blocks, page, row), (stride, row, 1))
        self.canonical = CanonicalCache(
            pages, block_size=page, heads=parts.kv_heads, head_dim=tiny.DIM
        )
        self.draft_pages = pages
        self.target_pages = torch.full((shape.blocks, kv_heads, TARGET_DIM, page), torch.nan)
        places = torch.arange(self.target_pages[0].numel()).view(kv_heads, TARGET_DIM, page)
        scorer.bind(KeyPages(self.target_pages, places.permute(2, 0, 1).contiguous()))
        self.cycle.bind(self.canonical)
        rebuild = self.working_set.rebuild

        def spy(batch: StepBatch, members: IntArray, slots: IntArray) -> IntArray:
            self.rebuilt |= {batch.request_ids[m] for m in members}
            return rebuild(batch, members, slots)

        self.working_set.rebuild = spy  # type: ignore[method-assign]

    def _trip(self, name: str) -> None:
        if self.broken == name:
            raise RuntimeError(f"injected fault in {name}")

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Break ``combine`` (ingest), ``output`` (drafting) or a ``write`` halfway through."""
        write = self.canonical.write
        if name == "write":

            def half(slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
                n = len(slots) // 2
                write(slots[:n], k[:n], v[:n])
                raise RuntimeError("injected fault in write")

            self.canonical.write = half  # type: ignore[method-assign]
        self.broken = name
        try:
            yield
        finally:
            self.broken = None
            self.canonical.write = write  # type: ignore[method-assign]

    def join(self, name: str, text: list[int], prompt: int, blocks: Sequence[int] = ()) -> Request:
        """A new request; ``blocks`` are another's whole first pages (a prefix hit)."""
        request = Request(name, text, prompt, len(blocks) * self.shape.page, blocks=list(blocks))
        self.users[list(blocks)] += 1
        self.requests.append(request)
        return request

    def leave(self, request: Request) -> None:
        """The request has ended."""
        self._release(request)
        self.requests.remove(request)
        self.cycle.finished(request.name)

    def preempt(self, request: Request) -> None:
        """Take a request's pages; it starts over with others."""
        self._release(request)
        request.computed, request.drafts = 0, []
        self.cycle.slots.drop(request.name)

    def _release(self, request: Request) -> None:
        for block in request.blocks:
            self.users[block] -= 1
            if not self.users[block]:
                self.draft_pages[block] = torch.nan
                self.target_pages[self.target_block[block]] = torch.nan
                self.free.insert(int(self.rng.integers(len(self.free) + 1)), block)
        request.blocks = []

    def step(
        self,
        work: Sequence[tuple[Request, int]],
        around: AbstractContextManager[object] = _NOTHING,
    ) -> tuple[list[Row], list[list[int]]]:
        """Run one step.

        ``work`` has, per request, the accepted drafts (decoding; cut to what there was) or the
        rows to prefill. ``around`` is entered around the cycle alone.
        """
        rows = [self._advance(request, amount) for request, amount in work]
        batch = self._batch(rows)
        self.rebuilt.clear()
        self.policy.observed.clear()
        self.policy.observed_shadows.clear()
        single = len(batch.token_ids) == len(rows) and not batch.drafted.any()
        with around:
            # As a session does: a step of one row each may need no cycle at all.
            self.resting = bool(
                single and batch.drafting.all() and self.cycle.rests(batch.request_ids)
            )
            if self.resting and self.cycle.rest(batch.token_ids, batch.features, batch.slots):
                drafts: list[list[int]] = [[] for _ in rows]
            else:
                drafts = self.cycle.run(batch)
        for row, draft in zip(rows, drafts, strict=True):
            row.request.drafts = draft
        return rows, drafts

    def _advance(self, request: Request, amount: int) -> Row:
        shape, start = self.shape, request.computed
        if request.decoding:
            # As hosts do: the last position of the model takes no draft.
            drafted = min(len(request.drafts), shape.max_len - 2 - start)
            accepted = min(amount, drafted)
            request.known += accepted
            length, scheduled = start + accepted + 1, start + drafted + 1
        else:
            drafted = accepted = 0
            length = scheduled = start + amount
        assert start < length <= request.known
        drafting = length == request.known
        if drafting:
            request.known += 1
            request.sampled = True
        request.computed = length
        while len(request.blocks) * shape.page < scheduled + shape.depth:
            request.blocks.append(self.free.pop())
            self.users[request.blocks[-1]] += 1
        for position in range(start, scheduled):  # rejected rows are written, too
            block = self.target_block[request.blocks[position // shape.page]]
            key = torch.from_numpy(self.key(request, position)).float()
            key = key[self.share.heads(TARGET_KV)]
            self.target_pages[block, :, :, position % shape.page] = key
        query = features_at(request, length - 1, "query", TARGET_HEADS * TARGET_DIM)
        slots = [
            request.blocks[p // shape.page] * shape.page + p % shape.page
            for p in range(start, length)
        ]
        return Row(
            request, start, length, drafting, drafted, accepted,
            2 * query.reshape(TARGET_HEADS, TARGET_DIM), slots,
        )  # fmt: skip

    def key(self, request: Request, position: int) -> Array:
        """The target's key ``[kv_heads, dim]`` at a position."""
        flat = features_at(request, position, "key", TARGET_KV * TARGET_DIM)
        return flat.reshape(TARGET_KV, TARGET_DIM)

    def features(self, request: Request, position: int) -> Array:
        """The target's auxiliary features at a position."""
        return features_at(request, position, "aux", tiny.AUX * tiny.TARGET_HIDDEN)

    def _batch(self, rows: Sequence[Row]) -> StepBatch:
        shape = self.shape
        # Past a request's pages a table names whatever it named before.
        width = -(-(shape.max_len + shape.depth + 1) // shape.page) + 1
        table = self.rng.integers(0, shape.blocks, size=(len(rows), width))
        for line, row in zip(table, rows, strict=True):
            line[: len(row.request.blocks)] = row.request.blocks
        tokens = [t for r in rows for t in r.request.text[r.start + 1 : r.length + 1]]
        features = [self.features(r.request, p) for r in rows for p in range(r.start, r.length)]
        sizes = [row.length - row.start for row in rows]
        return StepBatch(
            request_ids=[row.request.name for row in rows],
            token_ids=torch.tensor(tokens),
            features=torch.from_numpy(np.stack(features)).float(),
            slots=torch.tensor([s for row in rows for s in row.slots]),
            row_starts=np.cumsum([0, *sizes]),
            lengths=np.array([row.length for row in rows]),
            drafting=np.array([row.drafting for row in rows]),
            drafted=np.array([row.drafted for row in rows]),
            accepted=np.array([row.accepted for row in rows]),
            sampled=np.array([row.sampled if row.drafting else -1 for row in rows]),
            newest=np.array([row.newest if row.drafting else -1 for row in rows]),
            query=torch.from_numpy(
                np.stack([row.query[self.share.heads(TARGET_HEADS)] for row in rows])
            ).float(),
            draft_table=torch.from_numpy(table).int(),
            target_table=torch.from_numpy(self.target_block[table]).int(),
        )
