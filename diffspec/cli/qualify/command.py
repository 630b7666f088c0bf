# SPDX-License-Identifier: Apache-2.0
"""One run: find the endpoints, check, time, print, write the record."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import typer
from rich.console import Console

from diffspec.cli.client import RequestError
from diffspec.cli.progress import Reporter
from diffspec.cli.qualify.asking import Asker
from diffspec.cli.qualify.bench import Bench, Plan
from diffspec.cli.qualify.endpoint import Endpoint, find, host_version, read
from diffspec.cli.qualify.matrix import BROKEN, broken, matrix
from diffspec.cli.qualify.performance import Cell, measure, verdict
from diffspec.cli.qualify.prompts import Prompts, Source, from_file
from diffspec.cli.qualify.record import Said, Seen, record
from diffspec.cli.qualify.report import matrix_table, speed_table
from diffspec.cli.qualify.text import ledger
from diffspec.evidence.records import read as read_record
from diffspec.testbed.counters import SpecCounters

#: Used where the endpoint does not say how long a context it takes.
_UNTOLD_LENGTH = 4096


@dataclass(frozen=True)
class Options:
    """The command line; lengths and tokens are None where they were not given."""

    url: str
    target_url: str | None
    model: str | None
    out: Path
    quick: bool = False
    as_json: bool = False
    lengths: Sequence[int] | None = None
    longest: int | None = None
    tokens: int | None = None
    batch: int = 4
    repeats: int | None = None
    tie: float = 0.125
    ranks: int = 1
    log: Path | None = None
    text: Path | None = None
    plain: bool = False
    api_key: str | None = None
    said: Said = field(default_factory=Said)


def plan_of(options: Options, limit: int | None) -> Plan:
    """What to ask of an endpoint whose ``max_model_len`` is ``limit``; raises ValueError."""
    tokens = options.tokens or (32 if options.quick else 128)
    room = (limit or _UNTOLD_LENGTH) - tokens
    wanted = options.lengths or ((256, 1024) if options.quick else (512, 2048, 8192))
    # Lengths of our own are cut to what fits; those asked for are not silently left out.
    lengths = sorted({min(n, room) for n in wanted} if options.lengths is None else set(wanted))
    if lengths[0] < 1 or lengths[-1] > room:
        raise ValueError(f"a context of {limit} tokens leaves {room} for a prompt, not {wanted}")
    longest = min(options.longest or (min(room, 8192) if options.quick else room), room)
    if options.longest is not None and longest < lengths[-1]:
        raise ValueError(f"--longest {longest} is shorter than prompts of {lengths[-1]} tokens")
    longest = max(longest, lengths[-1])  # --quick's own, beside lengths that were asked for
    return Plan(
        lengths=tuple(lengths),
        longest=longest,
        max_model_len=limit,
        tokens=tokens,
        batch=options.batch,
        repeats=options.repeats or (2 if options.quick else 5),
        tie=options.tie,
        ranks=options.ranks,
        log=options.log,
    )


def qualify(options: Options) -> int:
    """Exit status: 0, 1 where a functional check failed, 2 where nothing could be begun."""
    name = options.out.stem
    try:
        if options.out.suffix != ".json" or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
            raise ValueError(f"--out {options.out}: lower-case letters, digits, dots, dashes .json")
        if options.log is not None:
            options.log.open("rb").close()
        source: Source = ledger if options.text is None else from_file(options.text)
        model, limit = find(options.url, options.model, options.api_key)
        target = None
        if options.target_url is not None:
            other, other_limit = find(options.target_url, options.model, options.api_key)
            limit = min((n for n in (limit, other_limit) if n is not None), default=None)
            target = Endpoint(options.target_url, other)
        plan = plan_of(options, limit)
    except (OSError, ValueError, RequestError, httpx.InvalidURL) as error:
        typer.echo(f"diffspec qualify: {error}", err=True)
        return 2
    with contextlib.ExitStack() as open_:
        # A log's tail belongs into a message about a dead server, if the log is here.
        ours = open_.enter_context(
            Asker(Endpoint(options.url, model, options.log), options.api_key)
        )
        theirs = None if target is None else open_.enter_context(Asker(target, options.api_key))
        reporter = open_.enter_context(Reporter())
        prompts = Prompts(ours, source, options.plain)
        bench = Bench(ours, theirs, prompts, plan, reporter)
        try:
            before = _ready(bench)
        except (ValueError, RequestError) as error:
            typer.echo(f"diffspec qualify: {error}", err=True)
            return 2
        seen = _run(bench, model, before)
    made = record(
        name, plan, options.said, seen, datetime.datetime.now(datetime.timezone.utc).date()
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.as_json:
        typer.echo(json.dumps(made, indent=2, ensure_ascii=False))
    else:
        _show(seen, options.out)
    for problem in read_record(options.out).problems:
        typer.echo(f"diffspec qualify: {options.out}: {problem}", err=True)
    return 1 if any(row.outcome == "failed" for row in seen.rows) else 0


def _ready(bench: Bench) -> SpecCounters:
    """What was counted before; raises RequestError or ValueError where a run proves nothing."""
    for who in (bench.ours, bench.target):
        if who is not None and (busy := read(who).busy):
            raise RequestError(f"{busy:.0f} requests of others run there: nobody else may use it")
    # The shortest and the longest: no prompt of the run lies outside, the same text is asked for.
    for length in (bench.plan.lengths[0], bench.plan.lengths[-1], bench.plan.longest):
        bench.prompt(length, 0)
    return read(bench.ours).spec


def _run(bench: Bench, model: str, before: SpecCounters) -> Seen:
    rows = matrix(bench)
    cells: list[Cell] = []
    spec = SpecCounters()
    try:
        cells = measure(bench)
        spec = read(bench.ours).spec - before
    except BROKEN as error:
        rows.append(broken("timed requests", error))
        bench.reporter.note(f"timed requests: failed ({error})")
    return Seen(
        model=model,
        host_version=host_version(bench.ours),
        rows=rows,
        tally=bench.tally,
        spec=spec,
        cells=cells,
        verdict=verdict(cells, works=not any(row.outcome == "failed" for row in rows)),
        compared=bench.target is not None,
    )


def _show(seen: Seen, out: Path) -> None:
    console = Console(highlight=False)
    console.print(matrix_table(seen.rows))
    if seen.cells:
        console.print(speed_table(seen.cells))
    console.print(f"Verdict: {seen.verdict.text}", markup=False, soft_wrap=True)
    console.print(f"Record: {out}", markup=False, soft_wrap=True)
