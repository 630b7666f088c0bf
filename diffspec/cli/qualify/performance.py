# SPDX-License-Identifier: Apache-2.0
"""Timed requests, by turns to both endpoints, and what they say about speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from diffspec.cli.client import Completion
from diffspec.cli.qualify.bench import Bench

Speed = Literal["improved", "unchanged", "degraded", "not-compared"]
#: A median this close to 1 is no difference worth a word.
NOISE = 0.03
#: From fewer pairs nothing is concluded.
LEAST_PAIRS = 3
_TIMED, _WARM_UP = 1000, 900
OURS, TARGET = "DiffSpec", "target-only"
SPEED = "output throughput"
METRICS = ("time to first token", "request latency", SPEED)


@dataclass(frozen=True)
class Timing:
    """One timed request. ``first`` and ``latency`` in seconds, ``speed`` in tokens/s.

    ``speed`` is that after the first piece of the stream; None where that piece brought much of the
    answer, as it does when a client is slower than a tiny model.
    """

    first: float
    latency: float
    speed: float | None

    @classmethod
    def of(cls, done: Completion) -> Timing:
        """Of one answer."""
        coarse = done.first_tokens > len(done.token_ids) / 4
        return cls(done.ttft_s, done.latency_s, None if coarse else done.decode_tok_s)

    def values(self) -> tuple[float | None, ...]:
        """In the order of :data:`METRICS`."""
        return self.first, self.latency, self.speed


@dataclass(frozen=True)
class Cell:
    """All requests of one prompt length; ``pairs`` are (DiffSpec, target-only or None)."""

    length: int
    pairs: tuple[tuple[Timing, Timing | None], ...]

    def arm(self, name: str) -> list[Timing]:
        """One arm's timings; empty for an arm that was not there."""
        found = [ours if name == OURS else target for ours, target in self.pairs]
        return [timing for timing in found if timing is not None]

    def ratios(self) -> list[float]:
        """Latency of target-only over DiffSpec's, by pair: above 1 where DiffSpec is faster."""
        return [target.latency / ours.latency for ours, target in self.pairs if target is not None]


@dataclass(frozen=True)
class Verdict:
    """``speed`` in one word, ``word`` as the manager's catalogue has it, ``text`` for people."""

    speed: Speed
    word: str
    text: str


def percentiles(timings: Sequence[Timing]) -> dict[str, tuple[float, float]]:
    """P50 and P95, interpolated, of those of :data:`METRICS` that are known."""
    out = {}
    for i, metric in enumerate(METRICS):
        if known := [value for t in timings if (value := t.values()[i]) is not None]:
            middle, high = np.percentile(known, (50, 95))
            out[metric] = float(middle), float(high)
    return out


def measure(bench: Bench) -> list[Cell]:
    """Time pairs of requests, one at a time; raises RequestError.

    Every pair has a prompt of its own, so no prefix cache helps, and the arm that goes first
    changes, so a machine that slows down or speeds up favours neither.
    """
    cells = []
    for length in bench.plan.lengths:
        _timed(bench, bench.prompt(length, _WARM_UP), first=OURS)
        pairs = []
        for i in range(bench.plan.repeats):
            bench.reporter.begin(f"{length} tokens, pair {i + 1} of {bench.plan.repeats}")
            prompt = bench.prompt(length, _TIMED + i)
            pairs.append(_timed(bench, prompt, first=TARGET if i % 2 else OURS))
        cells.append(Cell(length, tuple(pairs)))
    return cells


def _timed(bench: Bench, prompt: list[int], *, first: str) -> tuple[Timing, Timing | None]:
    tokens = bench.plan.tokens
    target = None
    if bench.target is not None and first == TARGET:
        target = Timing.of(bench.target.complete(prompt, tokens))
    ours = Timing.of(bench.ours.complete(prompt, tokens))
    if bench.target is not None and first == OURS:
        target = Timing.of(bench.target.complete(prompt, tokens))
    return ours, target


def verdict(cells: Iterable[Cell], works: bool) -> Verdict:
    """The words for what was measured, all lengths together; ``works``: no check failed."""
    speed: Speed
    ratios = [ratio for cell in cells for ratio in cell.ratios()]
    if not ratios:
        return Verdict("not-compared", "inconclusive", "speed not compared with target-only")
    low, middle, high = np.percentile(ratios, (25, 50, 75))
    how = f"request latency, median of {len(ratios)} pairs, middle half {low:.2f} to {high:.2f}"
    told = f"{middle:.2f} times as fast as target-only ({how})"
    apart = low > 1 or high < 1
    if len(ratios) < LEAST_PAIRS or (not apart and abs(middle - 1) > NOISE):
        speed, word, text = "not-compared", "inconclusive", f"no clear difference in speed: {told}"
    elif abs(middle - 1) <= NOISE:
        speed, word, text = "unchanged", "neutral", f"no faster and no slower: {told}"
    elif middle < 1:
        speed, word = "degraded", "not-recommended-for-tested-cell"
        text = f"not recommended as an acceleration: {told}"
    else:
        speed, word, text = "improved", "beneficial", f"faster: {told}"
    if not works:
        return Verdict(speed, "inconclusive", f"does not work, see the failed checks; {told}")
    return Verdict(speed, word, f"compatible, {text}")
