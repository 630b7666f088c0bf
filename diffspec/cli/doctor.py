# SPDX-License-Identifier: Apache-2.0
"""`diffspec doctor`: prints the findings of :mod:`diffspec.doctor`, one a line."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from diffspec.doctor.findings import Finding, Report

_STYLE = {"ok": "green", "warning": "yellow", "error": "bold red"}
_ID_WIDTH = 26


class Lane(str, Enum):
    """Values of ``--platform``."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    ascend = "ascend"


def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE] [-- COMMAND...]",
            help="A diffspec.json, and after -- the whole command that starts the server.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--target", metavar="DIR", help="The target's folder; its config.json is read."
        ),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option("--draft", metavar="DIR", help="The draft's folder; headers are read too."),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option("--config-file", metavar="FILE", help="A diffspec.json, instead of FILE."),
    ] = None,
    platform: Annotated[
        Lane,
        typer.Option("--platform", help="What the launch is meant for; auto: what is here."),
    ] = Lane.auto,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Import vLLM, in a process of its own, to check signatures."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 where there are warnings only.")
    ] = False,
) -> None:
    """Say whether DiffSpec will run here, and if not, what to change.

    Looks at this machine, at a diffspec.json, at a pair of model folders and at a command line.
    Exits with 0 if nothing is wrong, 2 with an error, 1 with a warning under --strict.
    """
    from diffspec.doctor.diagnose import Question, diagnose

    words = list(command or [])
    if config_file is None and words and words[0].endswith(".json"):
        config_file = Path(words.pop(0))
    report = diagnose(
        Question(
            target=target,
            draft=draft,
            config_file=config_file,
            command=words,
            platform=None if platform is Lane.auto else platform.value,
            deep=deep,
        )
    )
    if as_json:
        typer.echo(json.dumps(report.to_json(strict=strict), indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        show(report, Console(highlight=False), strict=strict)
    raise typer.Exit(report.exit_status(strict=strict))


def show(report: Report, console: Console, *, strict: bool = False) -> None:
    """Print a line for each finding and one for the result; plain where it is not a terminal."""
    from rich.text import Text

    for finding in report.findings:
        # Lines stay whole, for grep and for copying a fix.
        console.print(_line(finding, Text()), soft_wrap=True)
    console.print(Text(*_result(report, strict=strict)), soft_wrap=True)


def _line(finding: Finding, line: Text) -> Text:
    line.append(f"{finding.level:<8}", style=_STYLE[finding.level])
    line.append(f"{finding.id:<{_ID_WIDTH}} ", style="dim")
    line.append(" ".join(finding.what.split()))
    if finding.fix:
        line.append(" -> ", style="dim")
        line.append(" ".join(finding.fix.split()), style="bold")
    return line


def _result(report: Report, *, strict: bool) -> tuple[str, str]:
    errors, warnings = report.count("error"), report.count("warning")
    counts = f"{_number(errors, 'error')}, {_number(warnings, 'warning')}"
    if errors:
        return f"{counts}: this will not run as it is", _STYLE["error"]
    if warnings:
        how = "refused, because of --strict" if strict else "nothing stands in the way"
        return f"{counts}: {how}", _STYLE["warning"]
    return f"{counts}: all is well", _STYLE["ok"]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
