# SPDX-License-Identifier: Apache-2.0
"""A qualification as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from diffspec.cli.qualify.bench import Row
from diffspec.cli.qualify.performance import METRICS, OURS, SPEED, TARGET, Cell, percentiles

_STYLE = {"passed": "green", "failed": "bold red", "not-run": "yellow"}


def matrix_table(rows: Sequence[Row]) -> Table:
    """The functional matrix."""
    out = Table(title="Functional matrix", title_justify="left")
    for name in ("check", "outcome", "what was seen"):
        out.add_column(name)
    for row in rows:
        style = _STYLE[row.outcome]
        # Details hold what a server answered, which may look like markup.
        out.add_row(row.name, f"[{style}]{row.outcome}[/]", row.detail.replace("[", r"\["))
    return out


def speed_table(cells: Sequence[Cell]) -> Table:
    """P50 and P95 of every arm at every length."""
    out = Table(title="Performance, P50 / P95, one request at a time", title_justify="left")
    for name in ("prompt", "arm", *METRICS):
        out.add_column(name, justify="left" if name == "arm" else "right")
    for cell in cells:
        for arm, shown in _arms(cell):
            out.add_row(str(cell.length), arm, *shown)
        out.add_section()
    return out


def _arms(cell: Cell) -> Iterator[tuple[str, list[str]]]:
    for arm in (OURS, TARGET):
        if timings := cell.arm(arm):
            found = percentiles(timings)
            yield arm, [_shown(metric, found.get(metric)) for metric in METRICS]


def _shown(metric: str, values: tuple[float, float] | None) -> str:
    if values is None:
        return "\N{EM DASH}"
    if metric == SPEED:
        return f"{values[0]:.2f} / {values[1]:.2f} tok/s"
    return f"{values[0]:.3f} / {values[1]:.3f} s"
