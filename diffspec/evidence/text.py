# SPDX-License-Identifier: Apache-2.0
"""Records as ``diffspec evidence list`` shows them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diffspec.evidence.records import Record, metric, quantity


def name_of(record: Record) -> str:
    """The file as one would type it here, where that is shorter."""
    path = record.path.resolve()
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(record.path)


def brief(record: Record) -> Mapping[str, Any]:
    """All of a statement; of a benchmark's many samples only what they are."""
    if record.kind != "benchmark":
        return record.data
    return {key: record.data.get(key) for key in ("schema", "kind", "what", "provenance")}


def lines(record: Record) -> Iterator[str]:
    """A record in lines of text: verdict, figures with units, what was not verified."""
    if record.problems:
        yield f"{name_of(record)}: not valid"
        yield from (f"  {problem}" for problem in record.problems)
        return
    data = record.data
    if record.kind == "benchmark":
        made = data["provenance"]
        yield f"{record.path.stem}: benchmark, {made['date']}, no verdict"
        yield f"  what: {data['what']}"
        yield f"  command: {made['command']}, commit {made['commit']}" + (
            " with changes" if made["uncommitted_changes"] else ""
        )
        yield f"  machine: {made['machine']}"
        yield "  versions: " + ", ".join(f"{k} {v}" for k, v in made["versions"].items())
        return
    verdict, pair = data["verdict"], data["pair"]
    yield f"{data['id']}: {record.kind}, {data['date'] or 'date not stated'}, {verdict['word']}"
    yield f"  cell: {verdict['cell']}"
    yield f"  reason: {verdict['reason']}"
    yield f"  measured by: {data['measured_by']}; {data['subject']['name']}"
    yield f"  models: {data['models']['target']['name']}; draft {data['models']['draft']['name']}"
    recommended = "recommended" if pair["recommended"] else "not recommended"
    yield f"  pair: {pair['state']}, performance {pair['performance']}, {recommended}"
    for measurement in data["measurements"]:
        cell = ", ".join(f"{name} {value}" for name, value in measurement["cell"].items())
        for figure in measurement["figures"]:
            yield f"  {cell}: {figure['arm']}, {metric(figure)}: {quantity(figure)}"
    yield from (f"  not verified here: {item}" for item in data["not_verified_here"])
