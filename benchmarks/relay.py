# SPDX-License-Identifier: Apache-2.0
"""Arms that answer at the same time by turns, a few tokens each.

A shared machine's speed doubles and halves within seconds, and a whole answer takes seconds:
ratios of whole answers say more of the machine than of the arms. Here every arm generates a few
tokens while the others wait in the middle of their answers. Some turns are added up to a span, so
that what happens only now and then has its share, and spans are what is compared.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from benchmarks.split import StepClock

Answer = dict[str, Any]
#: Yields whenever the arm waits for its turn; returns its answer.
Turns = Generator[None, None, Answer]


class PausableTime:
    """``time.perf_counter`` of a process, from now on, that stands still while an arm waits: what
    an engine measures of itself is then what it would be without the others."""

    def __init__(self) -> None:
        self._real, self._waited = time.perf_counter, 0.0
        time.perf_counter = self

    def __call__(self) -> float:
        """Seconds."""
        return self._real() - self._waited

    def take_back(self, seconds: float) -> None:
        """So much of the past has not been."""
        self._waited += seconds

    def stand_still(self, wait: Callable[[], None]) -> None:
        """Call ``wait`` in no time."""
        begin = self._real()
        wait()
        self._waited += self._real() - begin


class Spans:
    """Within an engine's process: pauses a generation, and takes the time only in between.

    Args:
        clock: of the engine.
        start: tokens up to the first pause, of all requests together; they are the first span.
        turn: tokens between pauses.
        span: tokens of a span.
        pause: returns when it is this engine's turn again.

    Attributes:
        found: tokens and seconds of every full span.
    """

    def __init__(
        self, clock: StepClock, start: int, turn: int, span: int, pause: Callable[[], None]
    ) -> None:
        self.found: list[tuple[int, float]] = []
        self._clock, self._pause = clock, pause
        self._turn, self._span = turn, span
        self._until, self._from, self._end = start, 0, start
        self._seconds, self._begin = 0.0, time.perf_counter()

    def __call__(self) -> None:
        """After every step."""
        if (done := self._clock.generated()) < self._until:
            return
        self._seconds += time.perf_counter() - self._begin
        if done >= self._end:
            self.found.append((done - self._from, self._seconds))
            self._from, self._end, self._seconds = done, done + self._span, 0.0
        self._pause()
        self._until, self._begin = done + self._turn, time.perf_counter()


def toggle(
    switch: Callable[[bool], None], pattern: Sequence[bool], now: PausableTime
) -> Callable[[], None]:
    """Instead of a pause: every call sets ``switch`` to the next one of ``pattern``, over and over.
    For the engine's own clock ``now`` there is no time while the switch is on."""
    settings = itertools.cycle(pattern)
    on, began = False, 0.0

    def pause() -> None:
        nonlocal on, began
        if on:
            now.take_back(now() - began)
        on = next(settings)
        switch(on)
        began = now()

    return pause


def answer_by_turns(
    engine: Any,
    clock: Any,
    pause: Callable[[], None],
    prompts: list[list[int]],
    tokens: int,
    *,
    start: int,
    turn: int,
    span: int,
) -> dict[str, Any]:
    """Greedy answers of an engine, with what every span of ``span`` tokens a request took; see
    :class:`Spans`."""
    before = engine.counters()
    clock.reset()
    clock.after = spans = Spans(
        clock, *(count * len(prompts) for count in (start, turn, span)), pause
    )
    try:
        answers = engine.generate(prompts, tokens)
    finally:
        clock.after = None
    counted = engine.counters() - before
    return {
        "tokens": [a.token_ids for a in answers],
        "drafts": counted.drafts,
        "accepted": counted.accepted,
        "steps": clock.steps,
        "split_ms_per_step": {name: round(ms, 4) for name, ms in clock.read().items()},
        "spans": spans.found,
    }


def relay(arms: Mapping[str, Turns], seed: int) -> dict[str, Answer]:
    """Let every arm have its turn until all have answered, in another order each round.

    Args:
        arms: by name, each just begun.
        seed: of the orders.
    """
    answers: dict[str, Answer] = {}
    names, order = list(arms), random.Random(seed)
    while names:
        order.shuffle(names)
        for name in list(names):
            try:
                next(arms[name])
            except StopIteration as end:
                answers[name] = end.value
                names.remove(name)
    return answers


def span_ratios(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], over: str, under: str
) -> list[float]:
    """Ratios of two arms' tokens per second, one for each span of the answers they gave by turns,
    those of the same ``at``; the first span of an answer is its start and left out."""
    beside = {tuple(run["at"]): run["spans"] for run in runs.get(under, ())}
    return [
        (a[0] / a[1]) / (b[0] / b[1])
        for run in runs.get(over, ())
        for a, b in zip(run["spans"][1:], beside.get(tuple(run["at"]), ())[1:], strict=False)
    ]


def paired_spans(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], over: str, under: str
) -> float | None:
    """Median of :func:`span_ratios`; None if there are none."""
    ratios = span_ratios(runs, over, under)
    return round(statistics.median(ratios), 4) if ratios else None


def interval(ratios: Sequence[float], samples: int = 1000) -> tuple[float, float]:
    """Between what, in 95 % of ``samples`` resamplings of ``ratios``, their median lies: the
    bootstrap (Efron 1979)."""
    draw = random.Random(0).choices
    medians = sorted(statistics.median(draw(ratios, k=len(ratios))) for _ in range(samples))
    return medians[round(0.025 * samples)], medians[round(0.975 * samples) - 1]


def speed(run: Mapping[str, Any]) -> float:
    """Tokens per second after the start."""
    spans = run["spans"][1:]
    return float(sum(tokens for tokens, _ in spans) / sum(seconds for _, seconds in spans))
