# SPDX-License-Identifier: Apache-2.0
"""Live progress on standard error: a moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Reporter:
    """Says what is being done, for how long, and how many tokens came; use it in a ``with`` block.

    Only :meth:`note` leaves a line behind.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, detail="")
        self._total: int | None = None

    def __enter__(self) -> Reporter:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, what: str, total: int | None = None) -> None:
        """Start a step; ``total`` is the number of tokens it will bring, if it brings any."""
        self._total = total
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=total, detail="")
        if not self.console.is_terminal and total is None:
            self.note(f"{what} …")

    def tokens(self, count: int) -> None:
        """``count`` tokens of the current step have come."""
        self._progress.update(self._task, completed=count, detail=f"{count}/{self._total} tokens")

    def note(self, line: str) -> None:
        """Leave ``line`` behind."""
        self.console.print(line, markup=False)
