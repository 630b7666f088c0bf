# SPDX-License-Identifier: Apache-2.0
"""What a verification step costs here, learnt from the steps that are served.

Nothing is assumed about the shape. Verifying is a table over (requests, verified rows), each entry
a line over the total context; proposing is, per number of requests, a line over the depth. What was
never measured is estimated from its neighbours and says so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from diffspec.adaptive_depth.line import ENOUGH, Line
from diffspec.adaptive_depth.load import MOVED, WELL_KNOWN, Entry, Load, outdated
from diffspec.adaptive_depth.policy import IntArray

#: Counts above this share entries: an eighth apart there, which bounds the table.
EXACT = 16
#: Steps after which an entry that none of them touched is doubted, and twice as many each time it
#: turns out to be as it was.
STALE, MOST_STALE = 256, 4096
#: Steps for which it is believed that an entry does take more than larger ones.
FIRM = 64
#: Steps of a rest that make a sample.
RESTED = 8
#: Most votes of the entry that tells the pace.
VOTES = 32
#: Weight of a new sample in plain averages.
_NEW = 1 / 16


def bucket(count: int) -> int:
    """The table entry of ``count``: itself up to :data:`EXACT`, then the end of an eighth."""
    if count <= EXACT:
        return count
    step = 1 << (count.bit_length() - 4)
    return -(-count // step) * step


def _closest(known: Iterable[int], count: int) -> int:
    """The nearest to the entry of ``count`` among ``known`` ones."""
    return min(known, key=lambda b: abs(b - bucket(count)))


@functools.lru_cache(maxsize=8)
def _bucket_table(bits: int) -> IntArray:
    return np.array([bucket(count) for count in range(1 << bits)], dtype=np.int64)


def buckets(size: int) -> IntArray:
    """:func:`bucket` of at least all counts below ``size``, as an array."""
    return _bucket_table(max(size, 256).bit_length())


class CostModel:
    """Seconds of a step by requests, verified rows, context and depth; one per process.

    A machine's pace changes: other programs, heat. Steps of some kind are then the only ones that
    show it, and costs of another kind, last seen at another pace, would be compared with theirs.
    So what moves the entry that is served most, at a context it knows, moves all other costs by the
    same factor, until they show something else themselves.

    Args:
        monotonic: verifying fewer rows never takes longer; not so where whole steps are captured
            graphs and only some numbers of rows have one.
    """

    def __init__(self, *, monotonic: bool = True) -> None:
        self._monotonic = monotonic
        self._pace = 1.0
        self._clock = 0
        # The entry (requests, rows) that is served most lately, by majority vote (Boyer and Moore).
        self._reference, self._votes = (0, 0), 0
        self._patience: dict[tuple[int, int], int] = {}
        self._verify: dict[int, dict[int, Line]] = {}
        self._propose: dict[int, Line] = {}
        self._seed: dict[int, float] = {}
        self._slope = 0.0
        #: Between steps: the host's scheduling, which no depth changes.
        self._gap = Line()
        #: What a step without drafts spends on proposing all the same, by requests: if it was
        #: planned, and if it rested, as most do that follow each other.
        self._idle: dict[int, Line] = {}
        self._resting: dict[int, Line] = {}
        #: What secret chains add to a step without drafts, by how many there are.
        self._shadow: dict[int, Line] = {}
        #: A draft step: the slope of proposing until depths have varied.
        self._draft_step = Line()
        #: Proposing where a working cache was rebuilt, and how often that is.
        self._rebuilding: dict[int, Line] = {}
        self._rebuild_rate = 0.0

    # Learning.

    def seed(self, rows: int, seconds: float) -> None:
        """A start-up measurement of ``rows`` rows without context: a hint of the shape."""
        self._seed[rows] = min(seconds, self._seed.get(rows, seconds))

    def observe_verify(self, requests: int, rows: int, context: int, seconds: float) -> None:
        """A step that verified ``rows`` rows of ``requests`` requests and read no prompt.

        Args:
            context: sum of the requests' lengths, tokens.
        """
        self._clock += 1
        at = bucket(requests), bucket(rows)
        entries = self._verify.setdefault(at[0], {})
        line = self._now(entries.setdefault(at[1], Line()))
        before = line.at(context, self._slope)
        stale, same = self._stale(at, line), not outdated(before, seconds)
        if stale:
            self._patience[at] = min(2 * self._patience_of(at), MOST_STALE) if same else STALE
        since = self._clock - line.seen  # in one step nobody can have shown that it is wrong
        wrong = since > 1 and outdated(before, self.load(requests, context).most(rows))
        if wrong and same:
            wrong, line.firm = False, self._clock + FIRM
        if stale or wrong:
            line = entries[at[1]] = Line()
            line.pace = line.learnt = self._pace
        if abs(self._pace - line.learnt) > MOVED * line.learnt:
            line.count = min(line.count, WELL_KNOWN)  # how it moved was a guess
        paces = at == self._vote(at) and line.count > WELL_KNOWN and line.settled(context)
        line.add(context, seconds, self._slope)
        if paces:
            self._pace *= line.at(context, self._slope) / before
        line.seen, line.pace, line.learnt = self._clock, self._pace, self._pace
        if line.spans():
            self._slope = line.slope()

    def rested(
        self, requests: int, context: int, steps: int, seconds: float, propose: float
    ) -> None:
        """So many steps without drafts passed that nobody timed one by one, ``seconds`` each all in
        all, ``propose`` of them for proposing. Their mean counts as few samples, since one long
        step may be all there is to it."""
        samples = max(1, steps // RESTED)
        self._clock += steps - samples
        verify = seconds - self.gap() - propose
        self._now(self._resting.setdefault(bucket(requests), Line())).add(1, propose)
        for _ in range(samples if verify > 0 else 0):
            self.observe_verify(requests, requests, context + requests * steps // 2, verify)

    def _vote(self, at: tuple[int, int]) -> tuple[int, int]:
        if at == self._reference:
            self._votes = min(self._votes + 1, VOTES)
        elif self._votes > 0:
            self._votes -= 1
        else:
            self._reference, self._votes = at, 1
        return self._reference

    def observe_propose(
        self,
        requests: int,
        depth: int,
        seconds: float,
        *,
        chain: float,
        rebuilt: bool,
        shadow: int,
        secrets: int = 1,
    ) -> None:
        """Proposing took ``seconds``, ``chain`` of them for the draft steps; ``depth`` is the
        deepest chain that was submitted and ``shadow`` the deepest of ``secrets`` that were not."""
        idle = self._now(self._idle.setdefault(bucket(requests), Line()))
        if depth == 0:
            if not shadow:
                idle.add(1, seconds)
            elif idle.count:
                excess = max(seconds - idle.at(1), 1e-9)
                line = self._now(self._shadow.setdefault(bucket(secrets), Line()))
                line.add(shadow, excess, self._now(self._draft_step).at(1))
            return
        if shadow:  # a mixture of both
            return
        self._rebuild_rate += _NEW * (rebuilt - self._rebuild_rate)
        self._now(self._draft_step).add(1, chain / depth)
        lines = self._rebuilding if rebuilt else self._propose
        line = self._now(lines.setdefault(bucket(requests), Line()))
        line.add(depth, seconds, self._draft_step.at(1))

    def observe_gap(self, seconds: float) -> None:
        """Time between two steps, while there was work."""
        self._now(self._gap).add(1, seconds)

    # Asking.

    def gap(self) -> float:
        """Seconds between two steps."""
        return self._now(self._gap).at(1)

    def load(self, requests: int, context: int) -> Load:
        """What verifying takes for so many requests of ``context`` tokens in all."""
        b = bucket(requests)
        entries = [
            Entry(
                rows,
                line.count,
                line.seen,
                line.knows(context),
                self._stale((b, rows), line),
                line.firm > self._clock,
                self._now(line).at(context, self._slope),
                line.doubt(),
            )
            for rows, line in self._verify.get(b, {}).items()
            if line.count
        ]
        return Load(
            entries,
            bucket=bucket,
            seeded=self._seeded if self._seed else None,
            elsewhere=lambda rows: self._elsewhere(requests, rows, context),
            monotonic=self._monotonic,
        )

    def compares(self, requests: int, context: int) -> bool:
        """Whether steps with and without drafts were measured for so many requests of about
        ``context`` tokens in all, however long ago."""
        b, drafting = bucket(requests), (self._propose, self._rebuilding)
        met = {rows > b for rows, line in self._verify.get(b, {}).items() if line.met(context)}
        return len(met) == 2 and any(line.count for lines in drafting for line in lines.values())

    def idle(self, requests: int) -> float:
        """Seconds of proposing in a step that was planned and drafts nothing."""
        return self._nearest(self._idle, requests, 1)

    def propose(self, requests: int, depth: int) -> float:
        """Seconds of proposing, rebuilding included at its present frequency."""
        if depth == 0:
            return self._nearest(self._resting or self._idle, requests, 1)
        slope, share = self._now(self._draft_step).at(1), self._rebuild_rate
        # Where only one of both was ever seen, it has to stand for the other.
        plain = self._nearest(self._propose or self._rebuilding, requests, depth, slope)
        rebuilding = self._nearest(self._rebuilding or self._propose, requests, depth, slope)
        return (1 - share) * plain + share * max(rebuilding, plain)

    def shadow(self, chains: int, depth: int) -> float | None:
        """Seconds that so many shadow chains of ``depth`` tokens add to a step without drafts.

        Until some were measured, what proposing as many took where a working cache was rebuilt, as
        one always is for them; None until that was measured. Of another number of chains each is
        taken to cost its share: a single one gets its try, however expensive many together were.
        """
        slope = self._now(self._draft_step).at(1)
        known = {at: line for at, line in self._shadow.items() if line.count >= ENOUGH}
        known = known or {at: line for at, line in self._rebuilding.items() if line.count}
        if not known:
            return None
        nearest = _closest(known, chains)
        share = 1.0 if nearest == bucket(chains) else chains / nearest
        return share * self._now(known[nearest]).at(depth, slope)

    def age(self) -> None:
        """Doubt what is known of steps with drafts: they deserve another try."""
        for requests, entries in self._verify.items():
            for rows, line in entries.items():
                if rows > requests:
                    line.age()
        for line in (*self._propose.values(), *self._rebuilding.values()):
            line.age()

    def table(self) -> list[dict[str, float]]:
        """The verifying table, an entry per row, for people and reports."""
        return [
            {"requests": b, "rows": rows, "steps": line.count, **self._now(line).describe()}
            for b, entries in sorted(self._verify.items())
            for rows, line in sorted(entries.items())
        ]

    # Guessing.

    def _now(self, line: Line) -> Line:
        """``line`` at the present pace."""
        if line.pace != self._pace:
            line.scale(self._pace / line.pace)
            line.pace = self._pace
        return line

    def _stale(self, at: tuple[int, int], line: Line) -> bool:
        """Whether the entry ``at`` (requests, rows) is too old to be believed. Never that of steps
        without drafts: these are looked at now and then."""
        waited = self._clock - line.seen
        return at[1] > at[0] and line.count >= ENOUGH and waited > self._patience_of(at)

    def _patience_of(self, at: tuple[int, int]) -> int:
        return self._patience.get(at, STALE)

    def _elsewhere(self, requests: int, rows: int, context: int) -> float | None:
        """From other numbers of requests at the same rows per request, else from the seeds, else
        from whatever is nearest; None if nothing was ever seen."""
        nearest = sorted(self._verify, key=lambda b: abs(b - requests))
        for b in nearest:
            entries = self._verify[b]
            line = entries.get(bucket(round(rows * b / requests)))
            if line and line.count >= ENOUGH:
                return self._now(line).at(context, self._slope)
        if self._seed:
            return self._seeded(rows) + self._slope * context
        for b in nearest:
            if lines := {r: line for r, line in self._verify[b].items() if line.count}:
                line = lines[min(lines, key=lambda r: abs(r - rows * b / requests))]
                return self._now(line).at(context, self._slope)
        return None

    def _seeded(self, rows: int) -> float:
        nearest = min(self._seed, key=lambda r: abs(r - rows))
        if not self._monotonic:
            return self._seed[nearest]
        return min(seconds for r, seconds in self._seed.items() if r >= nearest)

    def _nearest(
        self, lines: dict[int, Line], requests: int, x: float, slope: float = 0.0
    ) -> float:
        known = [b for b, line in lines.items() if line.count]
        return self._now(lines[_closest(known, requests)]).at(x, slope) if known else 0.0
