# SPDX-License-Identifier: Apache-2.0
"""Where a DiffSpec step spends its time, part by part, without touching the code that is timed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any


class SplitClock:
    """Seconds per part since the last reset, decode steps only.

    Parts: ``ingest``, ``score``, ``rebuild`` (without score), ``append``, ``draft``, and
    ``bookkeeping`` (the rest of our part of the step). On a CPU calls return when work is done, so
    wall time around a call is its cost.
    """

    def __init__(self, session: Any) -> None:
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._step: dict[str, float] = {}
        cycle = session.cycle
        working_set = cycle.working_set
        cycle._ingest = self._timed("ingest", cycle._ingest)
        cycle._chain = self._timed("draft", cycle._chain)
        working_set.masses = self._timed("score", working_set.masses)
        working_set.rebuild = self._timed("rebuild", working_set.rebuild)
        working_set.append = self._timed("append", working_set.append)
        session.drafter.propose = self._step_of(session.drafter.propose)
        self.steps = 0

    def reset(self) -> None:
        """Start anew."""
        self._spent.clear()
        self.steps = 0

    def read(self) -> dict[str, float]:
        """Milliseconds per decode step of each part, and ``steps``."""
        steps = max(1, self.steps)
        parts = {name: 1e3 * seconds / steps for name, seconds in self._spent.items()}
        return {**parts, "steps": self.steps}

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._step[name] = self._step.get(name, 0.0) + time.perf_counter() - begin

        return timed

    def _step_of(self, propose: Callable[..., Any]) -> Callable[..., Any]:
        def step(**kwargs: Any) -> Any:
            self._step = {}
            begin = time.perf_counter()
            result = propose(**kwargs)
            total = time.perf_counter() - begin
            rows = kwargs["target_token_ids"].shape[0]
            if rows <= 64 and any(result):
                inner = dict(self._step)
                inner["rebuild"] = inner.get("rebuild", 0.0) - inner.get("score", 0.0)
                inner["bookkeeping"] = total - sum(inner.values())
                for name, seconds in inner.items():
                    self._spent[name] += seconds
                self.steps += 1
            return result

        return step
