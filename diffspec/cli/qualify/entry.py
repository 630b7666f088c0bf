# SPDX-License-Identifier: Apache-2.0
"""The command line of `diffspec qualify`; what it needs is imported when it runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import InvalidVersion, Version

_KEY = "VLLM_API_KEY"


def qualify(
    url: Annotated[str, typer.Argument(help="The endpoint with DiffSpec: http://host:port.")],
    target_only: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The same target without speculation, to compare with."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which model, where several are served.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the record goes.")] = Path(
        "qualification.json"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Short prompts and answers, two timed pairs.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record instead of tables.")
    ] = False,
    lengths: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Prompts in tokens; 512,2048,8192.")
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(min=1, help="The long-context prompt in tokens; all that fits."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=8, help="Generated per request; 128, or 32 with --quick.")
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Requests at once: the server's --max-num-seqs.")
    ] = 4,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed pairs for each length; 5, or 2.")
    ] = None,
    tie: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Logits up to this far apart are a tie: one bfloat16 step between 16 and 32 is "
            "0.125; for float32 give 1e-4.",
        ),
    ] = 0.125,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The server's log, to see every rank load the draft."),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Workers that have to be in that log.")] = 1,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="UTF-8 text to make prompts of, instead of ours."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Prompts do not end with a passage they hold.")
    ] = False,
    hardware: Annotated[
        str | None, typer.Option(metavar="TEXT", help="For the record: what it runs on.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="NAME", help="For the record: the draft that is served.")
    ] = None,
    checkpoint_sha256: Annotated[
        str | None, typer.Option(metavar="HEX", help="For the record: of the draft's checkpoint.")
    ] = None,
    release: Annotated[
        str | None, typer.Option(metavar="VERSION", help="For the record: the DiffSpec served.")
    ] = None,
    command: Annotated[
        str | None, typer.Option(metavar="TEXT", help="For the record: the serving command.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VERSION", help="For the record: a host beside vLLM; may be repeated."
        ),
    ] = None,
) -> None:
    """Check a served endpoint, compare it with target-only, and write an evidence record.

    Nobody else may use the endpoints meanwhile. Exits with 0, with 1 if a functional check failed,
    with 2 if it could not begin. The variable VLLM_API_KEY is sent as bearer token.
    """
    try:
        from diffspec.cli.qualify.command import Options
        from diffspec.cli.qualify.command import qualify as run
        from diffspec.cli.qualify.record import Said
    except ModuleNotFoundError as error:
        typer.echo(f"diffspec qualify needs {error.name}, which comes with vLLM", err=True)
        raise typer.Exit(2) from None
    try:
        wanted = [int(part) for part in lengths.split(",")] if lengths else None
    except ValueError:
        raise typer.BadParameter(
            f"{lengths!r} is no list of numbers", param_hint="--lengths"
        ) from None
    options = Options(
        url=_base(url),
        target_url=None if target_only is None else _base(target_only),
        model=model,
        out=out,
        quick=quick,
        as_json=as_json,
        lengths=wanted,
        longest=longest,
        tokens=tokens,
        batch=batch,
        repeats=repeats,
        tie=tie,
        ranks=ranks,
        log=log,
        text=text,
        plain=plain,
        api_key=os.environ.get(_KEY) or None,
        said=Said(hardware, draft, checkpoint_sha256, release, command, _hosts(host or ())),
    )
    raise typer.Exit(run(options))


def _hosts(given: Iterable[str]) -> dict[str, str]:
    """``NAME=VERSION`` by name; raises BadParameter where it is not of that form."""
    hosts = {}
    for text in given:
        name, _, version = (part.strip() for part in text.partition("="))
        try:
            hosts[name] = str(Version(version))
        except InvalidVersion:
            name = ""
        if not name:
            raise typer.BadParameter(f"{text!r} is no NAME=VERSION", param_hint="--host")
    return hosts


def _base(url: str) -> str:
    """Without what clients of the OpenAI API write behind it."""
    return url.rstrip("/").removesuffix("/v1")
