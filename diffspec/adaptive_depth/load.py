# SPDX-License-Identifier: Apache-2.0
"""What verifying so many rows takes for one number of requests and one context."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diffspec.adaptive_depth.line import ENOUGH, FIRST_SPREAD

#: Doubts by which a measured entry is taken to be faster than its samples say: an entry with few
#: or scattered samples is tried again before it is given up.
HOPE = 1.5
#: What an entry without samples is taken to cost, as a share of what seeds hint at.
_HOPEFUL = 1 - HOPE * FIRST_SPREAD
#: Samples from which an entry says something of others.
WELL_KNOWN = 4
#: Change of a machine's pace from which what was seen before is doubted.
MOVED = 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds; ``seen`` if they were measured near the asked point, else they are a guess."""

    seconds: float
    seen: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the table as it looks from one context.

    Attributes:
        rows: verified.
        count: samples, at least 1.
        seen: when it last learnt something.
        knows: whether it has seen enough samples, and some near this context.
        stale: whether it is too old to be believed.
        firm: whether it was found, lately, that it does take more than larger ones.
        seconds, doubt: its value here, and how far off that may well be.
    """

    rows: int
    count: int
    seen: int
    knows: bool
    stale: bool
    firm: bool
    seconds: float
    doubt: float

    @property
    def hopeful(self) -> float:
        """Seconds, less than the samples say where these are few or scattered."""
        return max(self.seconds - HOPE * self.doubt, 0.7 * self.seconds)


def outdated(seconds: float, most: float) -> bool:
    """Whether an entry says so much more than it can take that it was seen at another pace."""
    return most < (1 - MOVED) * seconds


class Load:
    """The table's entries for one number of requests, as they look from one context.

    Args:
        entries: in any order.
        bucket: the entry of a number of rows.
        seeded: seconds of a number of rows without any context; None if that was not measured.
        elsewhere: a guess from other numbers of requests; None if there is none.
        monotonic: verifying fewer rows never takes longer.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        *,
        bucket: Callable[[int], int],
        seeded: Callable[[int], float] | None,
        elsewhere: Callable[[int], float | None],
        monotonic: bool,
    ) -> None:
        self._entries = {entry.rows: entry for entry in entries}
        self._bucket, self._seeded, self._elsewhere = bucket, seeded, elsewhere
        known = [entry for entry in entries if entry.count >= ENOUGH]
        self._known = [entry for entry in known if not entry.stale] or known
        usable = (e for e in entries if e.knows and not e.stale and e.count > WELL_KNOWN)
        self._limits, self._monotonic = list(usable) if monotonic else [], monotonic
        self._found: dict[int, Estimate | None] = {}

    def verify(self, rows: int) -> Estimate | None:
        """Verifying ``rows`` rows; None if nothing at all is known."""
        at = self._bucket(rows)
        if at not in self._found:
            self._found[at] = self._estimate(at, rows)
        return self._found[at]

    def most(self, rows: int) -> float:
        """Seconds that ``rows`` rows can take at most: what more rows took here since."""
        at = self._bucket(rows)
        since = self._entries[at].seen if at in self._entries else 0
        larger = (e.seconds + e.doubt for e in self._limits if e.rows > at and e.seen > since)
        return min(larger, default=math.inf)

    def _estimate(self, at: int, rows: int) -> Estimate | None:
        own = self._entries.get(at)
        if own and own.knows and not own.stale:
            estimate = Estimate(own.hopeful, seen=True)
        else:
            guess = self._guess(at)
            if own:
                seconds = own.hopeful
                if guess is not None and (own.stale or own.count < ENOUGH):
                    seconds = min(seconds, guess)
            elif (other := self._elsewhere(rows) if guess is None else guess) is not None:
                seconds = other
            else:
                return None
            estimate = Estimate(seconds, seen=False)
        if (own and own.firm) or (most := self.most(rows)) >= estimate.seconds:
            return estimate
        return Estimate(most, estimate.seen and not outdated(estimate.seconds, most))

    def _guess(self, at: int) -> float | None:
        """From other row counts: between two known ones along the straight line, beyond them along
        the seeds. The first invites a try wherever the truth is a step."""
        others = {e.rows: e.seconds for e in self._known if e.rows != at}
        below = max((rows for rows in others if rows < at), default=None)
        above = min((rows for rows in others if rows > at), default=None)
        if below is not None and above is not None:
            low, high = others[below], others[above]
            return low + (high - low) * (at - below) / (above - below)
        nearest = below if below is not None else above
        if nearest is None:
            return None
        seconds = others[nearest]
        ratio = self._seeded(at) / self._seeded(nearest) if self._seeded else 1.0
        if at < nearest:
            return seconds * ratio
        # Seeds are few samples, and without context rows may cost what they do not cost with it:
        # only half of what they hint at is believed, so that more rows get their try.
        hoped = _HOPEFUL * seconds * (1 + ratio) / 2
        return max(seconds, hoped) if self._monotonic else hoped
