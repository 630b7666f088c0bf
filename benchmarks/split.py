# SPDX-License-Identifier: Apache-2.0
"""Where a decode step spends its time, part by part, without touching the code that is timed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from diffspec.proposer import cycle as steps

#: Steps with more rows than this read a prompt and are left out.
DECODE_ROWS = 64


class StepClock:
    """Milliseconds per decode step since the last reset, for any arm.

    Parts: ``verify`` (the target's forward pass, sampling and rejection: everything in the worker
    but proposing) and ``propose``; on a DiffSpec arm ``propose`` is divided further into
    ``ingest``, ``score``, ``rebuild`` (without score), ``append``, ``draft`` and ``bookkeeping``
    (the rest of it). On a CPU calls return when work is done, so wall time around a call is its
    cost.

    Attributes:
        marks: of every step since the last reset its end (seconds), the tokens it sampled, and
            the drafted tokens it verified.
        after: called at the end of every step, if there is one.

    Args:
        worker: of an engine in this process.
        session: DiffSpec's, or None on another arm.
    """

    def __init__(self, worker: Any, session: Any = None) -> None:
        self.steps = 0
        self.marks: list[tuple[float, int, int]] = []
        self.after: Callable[[], None] | None = None
        self._drafted = 0
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._step: defaultdict[str, float] = defaultdict(float)
        self._decoding = False
        runner = worker.model_runner
        worker.execute_model = self._first(worker.execute_model)
        worker.sample_tokens = self._last(worker.sample_tokens)
        runner.propose_draft_token_ids = self._timed("propose", runner.propose_draft_token_ids)
        if session is not None:
            cycle = session.cycle
            working_set = cycle.working_set
            cycle._ingest = self._timed("ingest", cycle._ingest)
            steps.draft_chain = self._timed("draft", steps.draft_chain)  # type: ignore[assignment]
            working_set.masses = self._timed("score", working_set.masses)
            working_set.rebuild = self._timed("rebuild", working_set.rebuild)
            working_set.append = self._timed("append", working_set.append)

    def generated(self) -> int:
        """Tokens sampled since the last reset."""
        return sum(sampled for _, sampled, _ in self.marks)

    def reset(self) -> None:
        """Start anew."""
        self._spent.clear()
        self.marks.clear()
        self.steps = 0

    def read(self) -> dict[str, float]:
        """Milliseconds per decode step of each part."""
        return {name: 1e3 * seconds / self.steps for name, seconds in self._spent.items()}

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._step[name] += time.perf_counter() - begin

        return timed

    def _first(self, call: Callable[..., Any]) -> Callable[..., Any]:
        timed = self._timed("worker", call)

        def first(scheduler_output: Any) -> Any:
            self._step.clear()
            drafts = getattr(scheduler_output, "scheduled_spec_decode_tokens", {})
            self._drafted = sum(map(len, drafts.values()))
            self._decoding = 0 < scheduler_output.total_num_scheduled_tokens <= DECODE_ROWS
            return timed(scheduler_output)

        return first

    def _last(self, call: Callable[..., Any]) -> Callable[..., Any]:
        timed = self._timed("worker", call)

        def last(*args: Any, **kwargs: Any) -> Any:
            result = timed(*args, **kwargs)
            sampled = sum(map(len, getattr(result, "sampled_token_ids", ())))
            self.marks.append((time.perf_counter(), sampled, self._drafted))
            if self._decoding:
                self._count(dict(self._step))
            if self.after is not None:
                self.after()
            return result

        return last

    def _count(self, parts: dict[str, float]) -> None:
        self.steps += 1
        propose = parts.pop("propose", 0.0)
        parts["verify"] = parts.pop("worker") - propose
        if "ingest" in parts:
            parts["rebuild"] = parts.get("rebuild", 0.0) - parts.get("score", 0.0)
            inner = ("ingest", "score", "rebuild", "append", "draft")
            parts["bookkeeping"] = propose - sum(parts.get(name, 0.0) for name in inner)
        else:
            parts["propose"] = propose
        for name, seconds in parts.items():
            self._spent[name] += seconds
