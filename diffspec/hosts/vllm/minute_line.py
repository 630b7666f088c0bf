# SPDX-License-Identifier: Apache-2.0
"""What DiffSpec did lately, as one log line for whoever is on call."""

from __future__ import annotations

import math
from collections.abc import Mapping

from diffspec.metrics import increase

#: Least seconds between two lines. A little under a minute: the host asks every few seconds, and a
#: minute would come out as one of these intervals more whenever a call is a moment early.
PERIOD_S = 59.0
_REASONS = {
    "no_gain": "no gain",
    "no_slot": "no slot",
    "length_limit": "length limit",
    "fault": "faults",
    "measuring": "measuring",
    "not_ready": "rows lost",
    "unsure": "draft unsure",
}


class MinuteLine:
    """Decides when a line is due, and writes it.

    Args:
        now: seconds on the clock of :meth:`due`.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._before: Mapping[str, float] = {}

    def due(self, snapshot: Mapping[str, float], now: float) -> str | None:
        """The line for the time since the last one; None if that was short or had no steps.

        Args:
            snapshot: numbers by flat key.
            now: seconds on any monotonic clock.
        """
        spent = {key: increase(self._before.get(key, 0.0), n) for key, n in snapshot.items()}
        if not _of(spent, "depth"):
            # A line is about the time in which there was work, not about the pause before it.
            self._since, self._before = now, snapshot
            return None
        if now - self._since < PERIOD_S:
            return None
        line = describe(spent, snapshot, now - self._since)
        self._since, self._before = now, snapshot
        return line


def describe(spent: Mapping[str, float], snapshot: Mapping[str, float], seconds: float) -> str:
    """One line about an interval with at least one decode step.

    Args:
        spent: increases of the counters in the interval, by flat key.
        snapshot: the numbers at its end, for the gauges.
        seconds: its length.
    """
    depths = {int(key): n for key, n in _of(spent, "depth").items()}
    steps = sum(depths.values())
    drafting = steps - depths.get(0, 0.0)
    accepted, drafted = spent.get("accepted", 0.0), spent.get("drafted", 0.0)
    parts = [f"DiffSpec, last {seconds:.0f} s: {1 + accepted / steps:.1f} tokens per step"]
    if drafting:
        parts[0] += f" at mean depth {sum(k * n for k, n in depths.items()) / drafting:.1f}"
        if drafted:
            parts[0] += f" (accepted {_percent(accepted / drafted)} of drafted)"
    if snapshot.get("off") == 1:
        parts.append("drafting is off after faults, see the log; served as target-only")
    elif drafting < steps:
        share = "all" if not drafting else _percent(1 - drafting / steps) + " of"
        parts.append(f"{share} steps without drafts{_reasons(spent, steps)}")
    if faults := sum(_of(spent, "faults").values()):
        parts.append(f"{_count(faults, 'fault')}, see the log")
    if retrievals := spent.get("retrievals", 0.0):
        parts.append(_count(retrievals, "retrieval"))
    if snapshot.get("off") != 1 and (pays := _break_even(snapshot)):
        parts.append(pays)
    return "; ".join(parts)


def _of(numbers: Mapping[str, float], group: str) -> dict[str, float]:
    """Label value → number of a group with a label, without zeros."""
    head = f"{group}/"
    return {key[len(head) :]: n for key, n in numbers.items() if key.startswith(head) and n}


def _reasons(spent: Mapping[str, float], steps: float) -> str:
    found = sorted(_of(spent, "zero").items(), key=lambda item: -item[1])
    if not found:
        return ""
    if len(found) == 1:
        return f" ({_REASONS[found[0][0]]})"
    return f" ({', '.join(f'{_REASONS[name]} {_percent(n / steps)}' for name, n in found)})"


def _break_even(snapshot: Mapping[str, float]) -> str:
    least = snapshot.get("break_even", math.nan)
    if math.isnan(least):
        return ""
    if least > 0.995:
        return "drafting pays at no acceptance"
    text = f"drafting pays from {_percent(least)} acceptance"
    first = snapshot.get("acceptance_first", math.nan)
    return text if math.isnan(first) else f"{text}, now at {_percent(first)}"


def _percent(share: float) -> str:
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _count(number: float, noun: str) -> str:
    return f"{number:.0f} {noun}{'' if number == 1 else 's'}"
