# SPDX-License-Identifier: Apache-2.0
"""A robust straight line through measured times that forgets."""

from __future__ import annotations

#: Weight of a new sample never falls below this.
LEAST_WEIGHT = 1 / 32
#: A sample counts as at most so many usual deviations off.
CLIP = 3.0
#: Usual deviation to begin with, and its least value, as shares of the value.
FIRST_SPREAD, LEAST_SPREAD = 0.1, 0.01
#: So many samples in a row that are cut on the same side are no outliers: the line moves to them.
LASTING = 4
#: Samples from which a line is believed.
ENOUGH = 3
#: Samples whose x lies closer together than this share of x say nothing of the slope.
NARROW = 0.1
#: Samples at one place from which on a line has left the one before behind.
SETTLED = 32
#: How far outside the x it has seen a line still counts as seen.
REACH = 0.8


class Line:
    """``y`` as a linear function of ``x``, both positive; ``y`` never falls with ``x``.

    The first samples of a shape may hold a compilation, so of the first two the smaller one is
    kept. Later ones are clipped at :data:`CLIP` usual deviations: one outlier hardly moves the
    line. :data:`LASTING` of them on the same side, where its samples lie, are a change, and the
    line is moved by the least that any of them says.

    Attributes:
        count: samples seen.
        pace: the machine's pace when it was last looked at; see :class:`CostModel`.
        seen: when it last learnt something, on its owner's clock.
        learnt: the pace then.
        firm: until when it is believed although more rows seem to cost less.
    """

    __slots__ = (
        *("_change", "_cov", "_high", "_low", "_off", "_spread", "_var", "_x", "_y"),
        *("_settled", "count", "firm", "learnt", "pace", "seen"),
    )

    def __init__(self) -> None:
        self.count, self.pace, self.learnt, self.seen, self.firm = 0, 1.0, 1.0, 0, 0
        self._x = self._y = self._var = self._cov = self._spread = 0.0
        self._low = self._high = 0.0
        self._settled = SETTLED
        # Samples cut in a row, negative below the line, and the least factor among them.
        self._off, self._change = 0, 1.0

    def add(self, x: float, y: float, slope: float = 0.0) -> None:
        """Learn one sample; ``slope`` is what is taken for the slope while this line has none."""
        self.count += 1
        if self.count == 1 or (self.count == 2 and y < self._y):
            self._x, self._y, self._spread = x, y, FIRST_SPREAD * y
            self._low, self._high = min(self._low or x, x), max(self._high, x)
            return
        self._low, self._high = min(self._low, x), max(self._high, x)
        if self.count == 2:
            return
        self._settled = self._settled + 1 if self._here(x) else 0
        predicted = self.at(x, slope)
        limit = CLIP * self._spread
        if not self._here(x):  # what it takes there is not known; at most it grows like x
            limit = max(limit, abs(x / self._x - 1) * self._y)
        if abs(y - predicted) <= limit:
            self._off = 0
        elif self._here(x) and self._lasting(y / max(predicted, 1e-12)):
            self.scale(self._change)
            self.count, self._off = ENOUGH, 0
            self._spread, predicted = FIRST_SPREAD * self._y, predicted * self._change
            limit = CLIP * self._spread
        error = min(max(y - predicted, -limit), limit)
        weight = max(1 / (self.count - 1), LEAST_WEIGHT)
        self._spread += weight * (abs(error) - self._spread)
        self._spread = max(self._spread, LEAST_SPREAD * self._y)
        dx, dy = x - self._x, predicted + error - self._y
        self._x += weight * dx
        self._y += weight * dy
        self._var = (1 - weight) * (self._var + weight * dx * dx)
        self._cov = (1 - weight) * (self._cov + weight * dx * dy)

    def _lasting(self, factor: float) -> bool:
        """Whether a sample of ``factor`` times what was expected is the last of a run of such."""
        slower = factor > 1
        if self._off == 0 or slower != (self._off > 0):
            self._off, self._change = 0, factor
        self._off += 1 if slower else -1
        self._change = min(self._change, factor) if slower else max(self._change, factor)
        return abs(self._off) >= LASTING

    def age(self) -> None:
        """Keep only a hopeful guess of what is known; a few samples settle it anew."""
        if self.count >= ENOUGH:
            self.count = ENOUGH - 1
            self._y *= 0.9
            self._spread = FIRST_SPREAD * self._y

    def scale(self, factor: float) -> None:
        """All times have become ``factor`` times as long."""
        self._y *= factor
        self._cov *= factor
        self._spread *= factor

    def at(self, x: float, slope: float = 0.0) -> float:
        """The line's value; ``slope`` as of :meth:`add`."""
        return max(self._y + self.slope(slope) * (x - self._x), 0.1 * self._y)

    def doubt(self) -> float:
        """How far off the line may well be."""
        return self._spread / min(self.count, 1 / LEAST_WEIGHT) ** 0.5 if self.count else 0.0

    def slope(self, usual: float = 0.0) -> float:
        """Its own slope as far as its samples say one, else ``usual``."""
        doubt = (NARROW * self._x) ** 2
        if not self._var + doubt:
            return usual
        return max(0.0, (self._cov + doubt * usual) / (self._var + doubt))

    def spans(self) -> bool:
        """Whether its samples lie far enough apart to tell a slope."""
        return self.count >= ENOUGH and self._var > (NARROW * self._x) ** 2

    def knows(self, x: float) -> bool:
        """Whether it has seen enough samples, and some near ``x``."""
        return self.count >= ENOUGH and self._near(x)

    def met(self, x: float) -> bool:
        """Whether it has seen more near ``x`` than a first sample, doubted since or not."""
        return self.count >= ENOUGH - 1 and self._near(x)

    def settled(self, x: float) -> bool:
        """Whether ``x`` lies where its samples lie, and they have lain there for a while: what
        moves the line at ``x`` is then no slope that it has still to learn."""
        return self._settled >= SETTLED and self._here(x)

    def describe(self) -> dict[str, float]:
        """Where the line stands: mean x, y there, slope, usual deviation."""
        return {"x": self._x, "y": self._y, "slope": self.slope(), "deviation": self._spread}

    def _near(self, x: float) -> bool:
        return self._low * REACH <= x <= self._high / REACH

    def _here(self, x: float) -> bool:
        return abs(x - self._x) <= NARROW * self._x
