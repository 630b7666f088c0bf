# SPDX-License-Identifier: Apache-2.0
"""Faults while serving: counted, logged once per kind, and never the request's problem."""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger("vllm.diffspec")

#: Faulty steps in a row after which the process drafts no more.
PATIENCE = 3


class FaultLog:
    """Counts faults by kind and decides when to stop drafting for good."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[str, type[BaseException]]] = set()
        self._in_a_row = 0
        self.gave_up = False

    @property
    def total(self) -> int:
        """Faults of all kinds so far."""
        return self.counts.total()

    def flat(self) -> dict[str, float]:
        """Faults under the keys of ``diffspec.metrics``."""
        known = {"ingesting verified rows": "ingest", "drafting": "draft"}
        found = {"faults/ingest": 0.0, "faults/draft": 0.0, "faults/other": 0.0}
        for kind, count in self.counts.items():
            found[f"faults/{known.get(kind, 'other')}"] += count
        return found

    def record(self, kind: str, error: BaseException) -> None:
        """Count a fault; the first of its kind and exception class is logged with traceback."""
        self.counts[kind] += 1
        if (kind, type(error)) not in self._logged:
            self._logged.add((kind, type(error)))
            logger.error(
                "DiffSpec: fault while %s; this step goes on without speculation, further faults "
                "of this kind are only counted",
                kind,
                exc_info=error,
            )
        self._in_a_row += 1
        if self._in_a_row >= PATIENCE:
            self.give_up(f"{self._in_a_row} faulty steps in a row")

    def give_up(self, reason: str) -> None:
        """Draft no more in this process."""
        if not self.gave_up:
            self.gave_up = True
            logger.error(
                "DiffSpec: %s; this process drafts no more and serves as target-only", reason
            )

    def clear_run(self) -> None:
        """A step went without a fault."""
        self._in_a_row = 0
