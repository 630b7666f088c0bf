# SPDX-License-Identifier: Apache-2.0
"""The functional matrix: every check in turn, whatever became of the one before."""

from __future__ import annotations

from collections.abc import Callable

from diffspec.cli.client import RequestError
from diffspec.cli.qualify.answers import concurrency, correctness, long_context, replay
from diffspec.cli.qualify.bench import Bench, Row
from diffspec.cli.qualify.counting import counters, drafting
from diffspec.cli.qualify.endpoint import Reading, read
from diffspec.cli.qualify.resilience import cancellation, recovery

CHECKS: dict[str, Callable[[Bench], Row]] = {
    "correctness": correctness,
    "capture and replay": replay,
    "concurrency": concurrency,
    "cancellation": cancellation,
    "exception recovery": recovery,
    "long context": long_context,
    "counters": counters,
}
DRAFTING = "draft loading"
#: A request, a text that is too short after all, a log that went away: a failed row, and the run
#: goes on.
BROKEN = (RequestError, ValueError, OSError)


def broken(name: str, error: Exception) -> Row:
    """The row of a check that could not be finished; without the log's tail in the message."""
    return Row(name, "failed", str(error).partition("; last lines of")[0])


def matrix(bench: Bench) -> list[Row]:
    """Run every check; an endpoint that breaks makes a failed row and raises nothing."""
    rows: list[Row] = []

    def run(name: str, check: Callable[[], Row]) -> None:
        bench.reporter.begin(name)
        try:
            row = check()
        except BROKEN as error:
            bench.reporter.note(str(error))
            row = broken(name, error)
        bench.reporter.note(f"{row.name}: {row.outcome}")
        rows.append(row)

    try:
        before = read(bench.ours)
    except RequestError as error:
        before = None
        rows.append(broken(DRAFTING, error))
    for name, check in CHECKS.items():
        run(name, lambda check=check: check(bench))  # type: ignore[misc]
    if before is not None:
        since: Reading = before
        run(DRAFTING, lambda: drafting(bench, since))
    return rows
