# SPDX-License-Identifier: Apache-2.0
"""What a verification step costs here, learnt from the steps that are served.

Nothing is assumed about the shape. Verifying is a table over (requests, verified rows), each entry
a line over the total context; proposing is, per number of requests, a line over the depth. What was
never measured is estimated from its neighbours and says so.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from diffspec.adaptive_depth.line import ENOUGH, FIRST_SPREAD, Line
from diffspec.adaptive_depth.policy import IntArray

#: Counts above this share entries: an eighth apart there, which bounds the table.
EXACT = 16
#: Doubts by which a measured entry is taken to be faster than its samples say: an entry with few
#: or scattered samples is tried again before it is given up.
HOPE = 1.5
#: What an entry without samples is taken to cost, as a share of what its shape hints at.
_HOPEFUL = 1 - HOPE * FIRST_SPREAD
#: Samples from which a change of an entry is taken for a change of the machine's pace.
WELL_KNOWN = 4
#: Steps after which an entry that none of them touched is doubted, and twice as many each time it
#: turns out to be as it was.
STALE, MOST_STALE = 256, 4096
#: Most votes of the entry that tells the pace, and the change of pace from which what was seen
#: before is doubted.
VOTES, _MOVED = 32, 0.1
#: Weight of a new sample in plain averages.
_NEW = 1 / 16


def bucket(count: int) -> int:
    """The table entry of ``count``: itself up to :data:`EXACT`, then the end of an eighth."""
    if count <= EXACT:
        return count
    step = 1 << (count.bit_length() - 4)
    return -(-count // step) * step


@functools.lru_cache(maxsize=8)
def _bucket_table(bits: int) -> IntArray:
    return np.array([bucket(count) for count in range(1 << bits)], dtype=np.int64)


def buckets(size: int) -> IntArray:
    """:func:`bucket` of at least all counts below ``size``, as an array."""
    return _bucket_table(max(size, 256).bit_length())


def _hopeful(line: Line, x: float, slope: float) -> float:
    value = line.at(x, slope)
    return max(value - HOPE * line.doubt(), 0.7 * value)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds; ``seen`` if they were measured near the asked point, else they are a guess."""

    seconds: float
    seen: bool


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
        #: What a step without drafts spends on proposing all the same, by requests.
        self._idle: dict[int, Line] = {}
        self._shadow = Line()
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
        stale = self._stale(at, line)
        if stale:
            same = seconds > 0.9 * before
            self._patience[at] = min(2 * self._patience_of(at), MOST_STALE) if same else STALE
        if stale or self._outdated(before, self._most(at, context)):
            line = entries[at[1]] = Line()
            line.pace = line.learnt = self._pace
        if abs(self._pace - line.learnt) > _MOVED * line.learnt:
            line.count = min(line.count, WELL_KNOWN)  # how it moved was a guess
        paces = at == self._vote(at) and line.count > WELL_KNOWN and line.settled(context)
        line.add(context, seconds, self._slope)
        if paces:
            self._pace *= line.at(context, self._slope) / before
        line.seen, line.pace, line.learnt = self._clock, self._pace, self._pace
        if line.spans():
            self._slope = line.slope()

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
    ) -> None:
        """Proposing took ``seconds``, ``chain`` of them for the draft steps; ``depth`` is the
        deepest chain that was submitted and ``shadow`` the deepest that was not."""
        idle = self._now(self._idle.setdefault(bucket(requests), Line()))
        if depth == 0:
            if not shadow:
                idle.add(1, seconds)
            elif idle.count:
                excess = max(seconds - idle.at(1), 1e-9)
                self._now(self._shadow).add(shadow, excess, self._now(self._draft_step).at(1))
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

    def verify(self, requests: int, rows: int, context: int) -> Estimate | None:
        """Verifying ``rows`` rows."""
        entries = self._verify.get(bucket(requests), {})
        estimate = self._estimate(entries, requests, rows, context)
        at = bucket(requests), bucket(rows)
        if estimate is None or (most := self._most(at, context)) >= estimate.seconds:
            return estimate
        return Estimate(most, estimate.seen and not self._outdated(estimate.seconds, most))

    def propose(self, requests: int, depth: int) -> float:
        """Seconds of proposing, rebuilding included at its present frequency."""
        if depth == 0:
            return self._nearest(self._idle, requests, 1)
        slope, share = self._now(self._draft_step).at(1), self._rebuild_rate
        # Where only one of both was ever seen, it has to stand for the other.
        plain = self._nearest(self._propose or self._rebuilding, requests, depth, slope)
        rebuilding = self._nearest(self._rebuilding or self._propose, requests, depth, slope)
        return (1 - share) * plain + share * max(rebuilding, plain)

    def shadow(self, depth: int) -> float | None:
        """Seconds that a shadow chain of ``depth`` tokens adds to a step without drafts; None
        until some were measured."""
        if self._shadow.count < ENOUGH:
            return None
        return self._now(self._shadow).at(depth, self._now(self._draft_step).at(1))

    def age(self) -> None:
        """Doubt what is known of steps with drafts: they deserve another try."""
        for requests, entries in self._verify.items():
            for rows, line in entries.items():
                if rows > requests:
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

    def _most(self, at: tuple[int, int], context: int) -> float:
        """Seconds that the entry ``at`` can take at most: what larger ones took here since."""
        if not self._monotonic:
            return math.inf
        (b, rows), entries = at, self._verify.get(at[0], {})
        since = entries[rows].seen if rows in entries else 0
        larger = (
            self._now(line).at(context, self._slope) + line.doubt()
            for r, line in entries.items()
            if r > rows and line.count > WELL_KNOWN and line.seen > since
            if line.knows(context) and not self._stale((b, r), line)
        )
        return min(larger, default=math.inf)

    @staticmethod
    def _outdated(seconds: float, most: float) -> bool:
        """Whether an entry says so much more than it can take that it was seen at another pace."""
        return most < (1 - _MOVED) * seconds

    def _patience_of(self, at: tuple[int, int]) -> int:
        return self._patience.get(at, STALE)

    def _estimate(
        self, entries: dict[int, Line], requests: int, rows: int, context: int
    ) -> Estimate | None:
        at = bucket(requests), bucket(rows)
        line = entries.get(at[1])
        stale = line is not None and self._stale(at, line)
        if line and self._now(line).knows(context) and not stale:
            return Estimate(_hopeful(line, context, self._slope), seen=True)
        guess = self._guess(entries, at, context)
        if line and line.count:
            own = _hopeful(line, context, self._slope)
            if guess is not None and (stale or line.count < ENOUGH):
                own = min(own, guess)
            return Estimate(own, seen=False)
        if guess is None:
            guess = self._elsewhere(requests, rows, context)
        return None if guess is None else Estimate(guess, seen=False)

    def _guess(self, entries: dict[int, Line], at: tuple[int, int], context: int) -> float | None:
        """From other row counts of the same requests: between two known ones along the straight
        line, beyond them along the seeds. The first invites a try wherever the truth is a step."""
        b, rows = at
        others = {r: line for r, line in entries.items() if line.count >= ENOUGH and r != rows}
        fresh = {r: line for r, line in others.items() if not self._stale((b, r), line)}
        known = {r: self._now(line) for r, line in (fresh or others).items()}
        below = max((r for r in known if r < rows), default=None)
        above = min((r for r in known if r > rows), default=None)
        if below is not None and above is not None:
            low, high = (known[r].at(context, self._slope) for r in (below, above))
            return low + (high - low) * (rows - below) / (above - below)
        nearest = below if below is not None else above
        if nearest is None:
            return None
        ratio = self._seeded(rows) / self._seeded(nearest) if self._seed else 1.0
        seconds = known[nearest].at(context, self._slope)
        if rows < nearest:
            return seconds * ratio
        # Without context rows may cost what they do not cost with it: more of them deserve a try.
        return max(seconds, _HOPEFUL * seconds * ratio)

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
        if not known:
            return 0.0
        nearest = lines[min(known, key=lambda b: abs(b - bucket(requests)))]
        return self._now(nearest).at(x, slope)
