# SPDX-License-Identifier: Apache-2.0
"""``diffspec evidence``: check records, show them, print the catalogue entry."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="evidence",
    help="Records of what was measured: check them, show them, make the catalogue entry.",
    no_args_is_help=True,
)
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Records or folders; all of this checkout's if none."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _exit_code(command: Callable[..., int]) -> Callable[..., None]:
    """Turn a command's result into the exit status, and what it raises into a line and 2."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            code = command(*args, **kwargs)
        except (OSError, ValueError) as error:
            typer.echo(f"diffspec evidence: {error}", err=True)
            code = 2
        raise typer.Exit(code)

    return run


@app.command()
@_exit_code
def validate(given: Files = None, as_json: AsJson = False) -> int:
    """Check records against the schema and themselves; exit 2 if one is wrong."""
    from diffspec.evidence.records import files, read
    from diffspec.evidence.text import name_of

    records = [read(path) for path in files(given or ())]
    if as_json:
        rows = [{"file": name_of(r), "kind": r.kind, "problems": list(r.problems)} for r in records]
        typer.echo(json.dumps(rows, indent=2))
    else:
        for record in records:
            for problem in record.problems or (f"valid, {record.kind}",):
                typer.echo(f"{name_of(record)}: {problem}")
    return 2 if any(record.problems for record in records) else 0


@app.command("list")
@_exit_code
def show(given: Files = None, as_json: AsJson = False) -> int:
    """Show verdicts, figures with units and what was not verified; exit 2 if a record is wrong."""
    from diffspec.evidence.records import files, read
    from diffspec.evidence.text import brief, lines, name_of

    records = [read(path) for path in files(given or ())]
    if as_json:
        rows = [
            {"file": name_of(r), "problems": list(r.problems), "record": brief(r)} for r in records
        ]
        # Digits are kept as written for people; a machine reads plain JSON numbers.
        typer.echo(json.dumps(rows, indent=2, default=float))
    else:
        typer.echo("\n\n".join("\n".join(lines(record)) for record in records))
    return 2 if any(record.problems for record in records) else 0


@app.command()
@_exit_code
def catalog(
    repository: Annotated[
        str, typer.Option(metavar="URL", help="Where others can clone this source from.")
    ],
    given: Files = None,
    commit: Annotated[
        str | None, typer.Option(help="40 hexadecimal digits; this checkout's if not given.")
    ] = None,
    ref: Annotated[
        str | None, typer.Option(help="Branch or tag of that commit; needed with --commit.")
    ] = None,
) -> int:
    """Print this extension's catalogue entry, made from the records, as JSON."""
    from diffspec.evidence.catalog import catalog as make
    from diffspec.evidence.catalog import checkout_commit
    from diffspec.evidence.records import statements

    if commit is None:
        here, commit = checkout_commit()
        ref = ref or here
    elif ref is None:
        raise ValueError("--commit needs --ref, the branch or tag it is on")
    made = make(statements(given or ()), repository=repository, ref=ref, commit=commit)
    typer.echo(json.dumps(made, indent=2, ensure_ascii=False))
    return 0
