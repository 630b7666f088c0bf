# SPDX-License-Identifier: Apache-2.0
"""What a drafting cycle must have done in a step, worked out slowly in float64 and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from diffspec.proposer.counters import Counters
from diffspec.proposer.faults import PATIENCE
from tests.unit import naive
from tests.unit import tiny_draft as tiny
from tests.unit.naive import Array, double
from tests.unit.serving import TARGET_SCALE, Host, Request, Row


@dataclass
class Held:
    """What a request's working cache holds."""

    positions: list[int]
    end: int
    since: int = 0
    first: bool = True
    base: int = 0
    right: bool = True
    stable: bool = False
    present: set[int] = field(default_factory=set)


@dataclass
class Counts:
    """What must have been counted."""

    drafted: int = 0
    rebuilds: int = 0
    retrievals: int = 0
    no_slot: int = 0
    shadows: int = 0
    shadow_hits: int = 0
    cut: int = 0
    unsure: int = 0
    changed: int = 0


def submitted(counters: Counters) -> int:
    """Tokens that request-steps proposed."""
    return sum(depth * count for depth, count in enumerate(counters.depths.tolist()))


class Oracle:
    """Follows a :class:`Host` step by step; every method asserts."""

    def __init__(self, host: Host) -> None:
        self.host, self.shape, self.draft = host, host.shape, host.draft
        self.held: dict[str, Held] = {}
        self.owners: dict[str, int] = {}
        self.holes: set[int] = set()
        #: Whether the first drafted token was accepted, for every step that had one.
        self.first: dict[str, list[bool]] = {}
        self.in_a_row = 0
        self.gave_up = False
        self.counters = Counts()
        self.waiting: list[int] = []
        self.shadows: dict[str, tuple[int, list[int], int]] = {}
        # Context length and what was drafted there.
        self.tails: dict[str, tuple[int, list[int]]] = {}
        self._projected: dict[tuple[str, int], tuple[Array, Array, Array, Array]] = {}

    def leave(self, request: Request) -> None:
        self.owners.pop(request.name, None)
        self.shadows.pop(request.name, None)
        self.tails.pop(request.name, None)
        self.held.pop(request.name, None)
        self.first.pop(request.name, None)

    def preempt(self, request: Request) -> None:
        self.held.pop(request.name, None)

    def check(
        self, rows: Sequence[Row], drafts: Sequence[list[int]], fault: str | None = None
    ) -> None:
        """The step ``rows`` with its proposed ``drafts``."""
        core = self.host.cycle
        assert sum(core.counters.zero.values()) == core.counters.depths[0], "one reason for each"
        assert len(drafts) == len(rows)
        slots = [slot for row in rows for slot in row.slots]
        if not self.gave_up:
            self._own(rows)
            self._observe(rows)
        idle = all(r.drafting for r in rows) and not any(self._chain_length(r) for r in rows)
        if idle and self.host.resting and len(self.waiting) + len(slots) > self.shape.waiting:
            # What waits is written, and then there is room.
            if fault in ("combine", "write"):
                self.holes |= {slot // self.shape.page for slot in self.waiting}
                self.held.clear()
            else:
                self._heal(self.waiting)
            self.waiting = []
        if idle and len(self.waiting) + len(slots) <= self.shape.waiting:
            # Nobody drafts, so nothing is projected, and nothing can fail.
            assert drafts == [[] for _ in rows]
            self.waiting += slots
            self.counters.no_slot += self._without_slot(rows)
            self.in_a_row = 0
            return
        slots, self.waiting = self.waiting + slots, []
        if fault in ("combine", "write"):
            self.holes |= {slot // self.shape.page for slot in slots}
            self.counters.no_slot += self._without_slot(rows)
            self._failed(drafts)
            return
        self._heal(slots)
        assert set(core._canonical.holes.nonzero().flatten().tolist()) == self.holes
        if self.gave_up:
            assert drafts == [[] for _ in rows]
            return
        self.counters.no_slot += self._without_slot(rows)
        if fault is not None:
            self._failed(drafts)
            return
        for row, draft in zip(rows, drafts, strict=True):
            self._check_row(row, draft)
        self.in_a_row = 0
        self._check_counters()

    def _heal(self, slots: Sequence[int]) -> None:
        page = self.shape.page
        self.holes -= {slot // page for slot in slots if slot % page == 0}

    def _without_slot(self, rows: Sequence[Row]) -> int:
        if self.gave_up:
            return 0
        return sum(r.drafting and r.request.name not in self.owners for r in rows)

    def _check_counters(self) -> None:
        found = self.host.cycle.counters
        assert found.zero["no_slot"] == self.counters.no_slot
        assert found.zero["unsure"] == self.counters.unsure
        assert submitted(found) == self.counters.drafted
        assert self.host.working_set.rows_changed == self.counters.changed
        for name in ("rebuilds", "retrievals", "shadows", "shadow_hits", "cut"):
            assert getattr(found, name) == getattr(self.counters, name), name

    def _observe(self, rows: Sequence[Row]) -> None:
        """What the policy must have been told, and what follows for retrieval."""
        policy = self.host.policy
        owned = [r for r in rows if r.request.name in self.owners]
        slot_of = {r.request.name: self.owners[r.request.name] for r in owned}
        told = [(slot_of[r.request.name], r.drafted, r.accepted, self._beyond(r)) for r in owned]
        assert policy.observed == [seen for seen in told if seen[1] or seen[3] >= 0]
        compared = []
        for row in owned:
            name, waits = row.request.name, self.shadows.get(row.request.name)
            if waits is None or not row.drafting:
                continue
            length, chain, right = waits
            if row.length != length + right + 1:
                del self.shadows[name]  # more than one token has come since
                if right:
                    compared.append((slot_of[name], right, right))
                continue
            hit = chain[right] == row.sampled
            self.shadows[name] = length, chain, right + hit
            if not hit or right + 1 == len(chain):
                compared.append((slot_of[name], len(chain), right + hit))
                del self.shadows[name]
        assert policy.observed_shadows == compared
        self.counters.shadow_hits += sum(right for _, _, right in compared)
        for row in owned:
            if row.drafted:
                self._learn(row.request.name, row.drafted, row.accepted)

    def _beyond(self, row: Row) -> int:
        """Whether the first token that was not verified was right; -1 if nobody knows."""
        if not row.drafting or row.request.name not in self.tails:
            return -1
        length, chain = self.tails.pop(row.request.name)
        if row.drafted >= len(chain) or row.length != length + row.drafted + 1:
            return -1  # all were verified, or not all were accepted, or it started over
        return int(chain[row.drafted] == row.request.text[row.length])

    def _chain_length(self, row: Row) -> int:
        """Tokens the request must draft in this step, a secret one included."""
        name = row.request.name
        if self.gave_up or not row.drafting or name not in self.owners:
            return 0
        slot, policy = self.owners[name], self.host.policy
        room = min(self.shape.depth, self.shape.max_len - 1 - row.length)
        depth = int(policy.by_slot[slot])
        # One comparison at a time.
        secret = 0 if name in self.shadows else int(policy.shadow_by_slot[slot])
        return max(0, min(depth if depth > 0 else secret, room))

    def _learn(self, name: str, drafted: int, accepted: int) -> None:
        self.first.setdefault(name, []).append(accepted > 0)
        if name in self.held and accepted < drafted:
            self.held[name].right = False

    def _dropped(self, name: str) -> bool:
        """Whether first tokens are missed in a row, improbably so by what was usual until now."""
        usual, missed = 1.0, 0
        for number, first in enumerate(self.first.get(name, []), start=1):
            weight = 1 / min(number + 2, 64)
            usual = (1 - weight) * usual + weight * first
            missed = 0 if first else missed + 1
        return missed >= 2 and (1 - usual) ** missed < 0.18

    def _failed(self, drafts: Sequence[list[int]]) -> None:
        assert all(draft == [] for draft in drafts)
        self.held.clear()
        self.in_a_row += 1
        self.gave_up |= self.in_a_row >= PATIENCE
        assert self.host.cycle.faults.gave_up == self.gave_up
        found = self.host.cycle.counters
        self.counters = Counts(
            submitted(found), found.rebuilds, found.retrievals, found.zero["no_slot"],
            found.shadows, found.shadow_hits, found.cut, found.zero["unsure"],
            self.host.working_set.rows_changed,
        )  # fmt: skip

    def _own(self, rows: Sequence[Row]) -> None:
        for row in rows:
            free = set(range(self.shape.slots)) - set(self.owners.values())
            if row.drafting and row.request.name not in self.owners and free:
                self.owners[row.request.name] = min(free)

    def _check_row(self, row: Row, draft: list[int]) -> None:
        name = row.request.name
        length = self._chain_length(row)
        if not length:
            assert draft == []
            assert name not in self.host.rebuilt
            return
        slot = self.owners[name]
        secret = self.host.policy.by_slot[slot] <= 0
        if not self._refresh(row):
            assert draft == []
            return
        submit = self.host.policy.submit_by_slot
        most = length if submit is None else min(length, int(submit[slot]))
        assert len(draft) == (0 if secret else most)
        self.counters.drafted += len(draft)
        if not secret:
            self.counters.cut += length - most
            self.counters.unsure += not most
            chain = self.host.cycle.submission.tails.tokens[slot].tolist()
            assert chain[: len(draft)] == draft
            assert chain[length:] == [-1] * (self.shape.depth + 1 - length)
            draft = chain[:length]
            self.tails[name] = row.length, draft
        if secret:
            self.counters.shadows += length
            draft = list(self.host.cycle.slots.shadows[slot].chain)
            assert len(draft) == length
            self.shadows[name] = row.length, draft, 0
        keys, values = self._check_working(row.request, slot)
        self._check_chain(row, draft, keys, values)

    def _refresh(self, row: Row) -> bool:
        """Follow the working cache's update; returns whether the request can draft."""
        shape, name = self.shape, row.request.name
        held = self.held.get(name)
        if held is not None and held.end != row.start:
            held = None
        rebuilt = name in self.host.rebuilt
        new = list(range(row.start, row.length))
        if held is None or len(held.positions) + len(new) + shape.depth - 1 > shape.budget:
            assert rebuilt, "stale or overflowing working cache"
        elif not rebuilt:
            held.positions += new
            held.since += 1
            held.end = row.length
            complete = held.positions == list(range(row.length))
            ahead = len(held.positions) - held.base + shape.depth
            stretched = self._covered(name, held, ahead)
            assert complete or stretched or held.since < shape.interval, "retrieval is overdue"
        else:
            assert held.positions + new != list(range(row.length)), "nothing to retrieve"
            ahead = len(held.positions) + len(new) - held.base + shape.depth
            assert not self._covered(name, held, ahead), "could have waited"
            # Slots start at different phases, so the first interval may be shorter.
            if not shape.reach:
                assert held.since < shape.interval
            assert held.since + 1 >= shape.interval or held.first
        if rebuilt:
            self.counters.rebuilds += 1
            self._rebuild(row, held)
        elif held is not None:
            self.held[name] = held
        return name in self.held

    def _covered(self, name: str, held: Held, ahead: int) -> bool:
        """Whether the selection still holds what is being read, for all that is known."""
        if not self.shape.reach:
            return False
        followed = held.right and ahead <= self.shape.reach
        return followed or (held.stable and not self._dropped(name))

    def _rebuild(self, row: Row, held: Held | None) -> None:
        shape, request, length = self.shape, row.request, row.length
        chunks = -(-length // shape.chunk)
        spans = [range(c * shape.chunk, min((c + 1) * shape.chunk, length)) for c in range(chunks)]
        blocked = {
            c
            for c, span in enumerate(spans)
            if any(request.blocks[p // shape.page] in self.holes for p in span)
        }
        present = set() if held is None else held.present
        stable = held is not None and held.stable
        if length + shape.depth - 1 <= shape.budget:
            chosen = [c for c in range(chunks) if c not in blocked]
        else:
            self.counters.retrievals += 1
            keys = np.stack([self.host.key(request, p) for p in range(length)])
            masses = naive.chunk_masses(row.query, keys, TARGET_SCALE, shape.chunk)
            chosen = naive.select(list(masses), chunks, shape.plan, present, blocked)
            assert len(chosen) <= shape.plan.total
            stable = len(present & set(chosen)) >= 0.9 * len(chosen)
            if present:  # a first one, or one after a pause, changes nothing
                self.counters.changed += len(set(chosen) - present) * shape.chunk
            present = set(chosen)
        if chunks - 1 in blocked:
            self.held.pop(request.name, None)
            return
        positions = [p for c in chosen for p in spans[c]]
        self.held[request.name] = Held(
            positions,
            length,
            0,
            held is None,
            len(positions),
            present=present,
            stable=stable,
        )

    def _check_working(self, request: Request, slot: int) -> tuple[Array, Array]:
        """Compare contents; returns the naive rotated keys and values ``[n, kv_heads, d]``."""
        core, positions = self.host.cycle, self.held[request.name].positions
        count = len(positions)
        assert count + self.shape.depth - 1 <= self.shape.budget
        assert positions == sorted(set(positions))
        assert core.slots.rows[slot] == count
        projected = [self.projected(request, p) for p in positions]
        keys = np.stack([k for _, k, _, _ in projected])
        keys = naive.rotate(keys, np.arange(count)[:, None], tiny.DIM, tiny.BASE)
        values = np.stack([v for _, _, v, _ in projected])
        working = self.host.working_set.working
        for cache, wanted in ((working.k, keys), (working.v, values)):
            found = double(cache[slot, :, :count]).swapaxes(0, 1)
            np.testing.assert_allclose(found, wanted, atol=1e-4)
        return keys, values

    def _check_chain(self, row: Row, draft: list[int], keys: Array, values: Array) -> None:
        q, _, _, residual = self.projected(row.request, row.length - 1)
        for step, token in enumerate(draft):
            # The first query is the newest committed row's own.
            turned = naive.rotate(q, len(keys) - 1, tiny.DIM, tiny.BASE)
            attention = naive.attend(turned, keys, values, tiny.SCALE)
            logits, feature = self.draft.finish(attention.flatten(), residual)
            best = self.draft.to_target[int(logits.argmax())]
            if token != best:  # only a tie, up to float32, may go the other way
                (at,) = np.flatnonzero(self.draft.to_target == token)
                assert logits[at] > logits.max() - 1e-3, f"draft step {step}: {token}, not {best}"
            q, k, v, residual = self.draft.project(token, feature)
            rotated = naive.rotate(k, len(keys), tiny.DIM, tiny.BASE)
            keys, values = np.append(keys, [rotated], 0), np.append(values, [v], 0)

    def confidences(self, request: Request, draft: list[int]) -> Array:
        """Logarithms of the probabilities with which the tokens of a first chain, drafted while
        the context was held whole, are the draft's best."""
        projected = [self.projected(request, p) for p in range(request.computed)]
        count = len(projected)
        keys = np.stack([k for _, k, _, _ in projected])
        keys = naive.rotate(keys, np.arange(count)[:, None], tiny.DIM, tiny.BASE)
        values = np.stack([v for _, _, v, _ in projected])
        q, _, _, residual = projected[-1]
        found = []
        for token in draft:
            turned = naive.rotate(q, len(keys) - 1, tiny.DIM, tiny.BASE)
            attention = naive.attend(turned, keys, values, tiny.SCALE)
            logits, feature = self.draft.finish(attention.flatten(), residual)
            found.append(logits.max() - np.log(np.exp(logits).sum()))
            q, k, v, residual = self.draft.project(token, feature)
            rotated = naive.rotate(k, len(keys), tiny.DIM, tiny.BASE)
            keys, values = np.append(keys, [rotated], 0), np.append(values, [v], 0)
        return np.array(found)

    def projected(self, request: Request, position: int) -> tuple[Array, Array, Array, Array]:
        """The draft's q, k, v and residual at a position of a request's text."""
        key = (request.name, position)
        if key not in self._projected:
            feature = self.draft.combine(self.host.features(request, position))
            self._projected[key] = self.draft.project(request.text[position + 1], feature)
        return self._projected[key]

    def check_canonical(self) -> int:
        """Every computed row outside of holes is in the pages; returns how many there are."""
        page, found, wanted = self.shape.page, [], []
        waiting = set(self.waiting)
        for request in self.host.requests:
            for position in range(request.computed):
                block = request.blocks[position // page]
                if block * page + position % page in waiting:
                    continue
                if block not in self.holes:
                    found.append(double(self.host.draft_pages[block, position % page]))
                    _, k, v, _ = self.projected(request, position)
                    wanted.append(np.stack((k, v)).flatten())
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        return len(found)
