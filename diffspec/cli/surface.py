# SPDX-License-Identifier: Apache-2.0
"""``diffspec surface``: where DiffSpec meets its hosts, release by release."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diffspec.hosts.verdicts import Column

app = typer.Typer(
    name="surface",
    help="Touch points of vLLM and vLLM-Ascend, compared with releases by their source.",
    no_args_is_help=True,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

_STYLE = {"ok": "green", "differs": "yellow", "absent": "bold red", "not used": "dim"}


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show each recorded release against the table; exit 1 if an accepted one differs."""
    from diffspec.hosts.snapshot import StaleSnapshotError
    from diffspec.hosts.verdicts import columns

    try:
        judged = columns()
    except StaleSnapshotError as error:
        typer.echo(f"diffspec surface: {error}", err=True)
        raise typer.Exit(2) from None
    _print(judged, as_json=as_json)
    raise typer.Exit(any(c.wrong for c in judged if c.must_fit))


@app.command()
def check(
    packages: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="The folder vllm, and vllm_ascend if wanted."),
    ],
    as_json: AsJson = False,
) -> None:
    """Hold packages on disk against the table, whatever their release; exit 1 if one differs.

    Nothing of them is imported.
    """
    from diffspec.hosts.releases import Release
    from diffspec.hosts.snapshot import record
    from diffspec.hosts.source import HostSource
    from diffspec.hosts.touch_point import PACKAGES
    from diffspec.hosts.verdicts import judge

    folders = [folder.resolve() for folder in packages]
    if wrong := [f for f in folders if f.name not in PACKAGES or not (f / "__init__.py").is_file()]:
        typer.echo(f"diffspec surface: {wrong[0]} is no package {' or '.join(PACKAGES)}", err=True)
        raise typer.Exit(2)
    judged = []
    for folder in folders:
        source = HostSource(folder, *(other for other in folders if other != folder))
        ascend = "vllm_ascend" in {f.name for f in folders}
        release = Release(
            PACKAGES[folder.name],
            source.version() or "unknown",
            "next",
            ("npu",) if ascend else ("cpu", "cuda"),
        )
        judged.append(judge(record(release, source, archive=str(folder), sha256="")))
    _print(judged, as_json=as_json)
    raise typer.Exit(any(c.wrong for c in judged))


@app.command()
def refresh(
    archives: Annotated[
        Path | None,
        typer.Option("--archives", metavar="DIR", help="Keep the downloads here; some 230 MB."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write here, not over the recorded ones."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download the source of every release in the table and record its touch points anew.

    pip fetches from the index it is configured for; nothing is built, imported or installed.
    """
    from diffspec.hosts.packages import FetchError
    from diffspec.hosts.refresh import refreshed
    from diffspec.hosts.snapshot import FOLDER, path_of
    from diffspec.hosts.verdicts import judge

    folder = out or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    judged = []
    with tempfile.TemporaryDirectory() as temporary:
        try:
            for snapshot in refreshed(archives or Path(temporary), Path(temporary, "unpacked")):
                path_of(snapshot.release, folder).write_text(snapshot.to_json(), encoding="utf-8")
                typer.echo(f"recorded {snapshot.release.title}", err=True)
                judged.append(judge(snapshot))
        except (FetchError, OSError, subprocess.TimeoutExpired) as error:
            typer.echo(f"diffspec surface: {error}", err=True)
            raise typer.Exit(2) from None
    _print(judged, as_json=as_json)
    raise typer.Exit(any(c.wrong for c in judged if c.must_fit))


def _print(judged: Sequence[Column], *, as_json: bool) -> None:
    from diffspec.hosts.releases import TITLE
    from diffspec.hosts.verdicts import to_json

    if as_json:
        typer.echo(json.dumps(to_json(judged), indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for host in dict.fromkeys(column.snapshot.release.host for column in judged):
        ours = [column for column in judged if column.snapshot.release.host == host]
        table = Table()
        table.add_column("touch point", overflow="fold")
        for column in ours:
            release = column.snapshot.release
            table.add_column(f"{release.version}\n({release.standing})", no_wrap=True)
        for target in ours[0].verdicts:
            module, _, name = target.partition(":")
            states = (column.verdicts[target].state for column in ours)
            where = Text(f"{module.rpartition('.')[2]}: ", "dim").append(name, "not dim")
            table.add_row(where, *(Text(state, _STYLE[state]) for state in states))
        console.print(Text(TITLE[host], "bold"))
        console.print(table)
    for column in judged:
        for verdict in column.wrong.values():
            line = Text(f"{column.snapshot.release.title}: ")
            console.print(line.append(verdict.text, _STYLE[verdict.state]), soft_wrap=True)
