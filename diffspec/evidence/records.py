# SPDX-License-Identifier: Apache-2.0
"""Finding, reading and checking evidence records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from diffspec import schemas
from diffspec.configuration import document
from diffspec.settings import ConfigError

FORMAT = "vllm-diffspec.evidence/v1"
#: The checkout this code lies in, if it lies in one.
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Record:
    """One file: ``data`` has every number as it was written, ``14.00`` as ``Decimal("14.00")``.

    ``data`` is empty when the file holds no JSON object; ``problems`` then says why.
    """

    path: Path
    data: Mapping[str, Any]
    problems: tuple[str, ...]

    @property
    def kind(self) -> str:
        """historical, qualification or benchmark; "unknown" for a record that names none."""
        kind = self.data.get("kind")
        return kind if isinstance(kind, str) else "unknown"


def folder() -> Path:
    """Where records lie: ``evidence/`` of this checkout, or of the current folder without one.

    Records are not installed with the package.
    """
    inside = CHECKOUT / "evidence"
    ours = (CHECKOUT / "pyproject.toml").is_file() and inside.is_dir()
    return inside if ours else Path(inside.name)


def files(given: Iterable[Path] = ()) -> list[Path]:
    """The records meant by ``given`` files and folders, or all there are; sorted within a folder.

    Raises FileNotFoundError when that is none.
    """
    wanted = list(given)
    if not wanted:
        wanted = [folder()]
        if not wanted[0].is_dir():
            raise FileNotFoundError("no folder of records here: name files or a folder of them")
    found: list[Path] = []
    for path in wanted:
        found += sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not found:
        raise FileNotFoundError(f"no *.json in {', '.join(map(str, wanted))}")
    return found


def read(path: Path) -> Record:
    """Read and check one file; every problem is in the result and none is raised."""
    try:
        text = path.read_text(encoding="utf-8")
        plain = document.parse(text, name="cannot be read")
    except ConfigError as error:
        return Record(path, {}, error.problems)
    except (OSError, UnicodeDecodeError) as error:
        return Record(path, {}, (f"cannot be read: {error}",))
    problems = schemas.problems("evidence", plain)
    if not isinstance(plain, dict):
        return Record(path, {}, tuple(problems))
    if not problems and plain["kind"] != "benchmark":
        problems = list(_contradictions(path, plain))
    return Record(path, json.loads(text, parse_float=Decimal), tuple(problems))


def statements(given: Iterable[Path] = ()) -> list[Record]:
    """Records that carry a verdict, historical ones last, newest first.

    Raises ValueError, naming every problem, if one of them is not valid, and FileNotFoundError as
    :func:`files` does.
    """
    found = [record for record in map(read, files(given)) if record.kind != "benchmark"]
    wrong = [f"{r.path}: {problem}" for r in found for problem in r.problems]
    if wrong:
        raise ValueError("\n".join(wrong))
    found.sort(key=lambda r: (r.data["date"] or "", r.data["id"]), reverse=True)
    return sorted(found, key=lambda r: r.kind == "historical")


def quantity(figure: Mapping[str, Any]) -> str:
    """A figure's value with its unit, in the digits of its source: ``0.459 s``, ``19.29 %``."""
    value, unit = figure["value"], figure["unit"]
    if unit == "ratio":
        return f"{value}\N{MULTIPLICATION SIGN}"
    return f"{value} {unit.removesuffix('s') if value == 1 and len(unit) > 2 else unit}"


def metric(figure: Mapping[str, Any]) -> str:
    """What a figure measures, with its statistic if it has one: ``request latency, P95``."""
    statistic = figure.get("statistic")
    return f"{figure['metric']}, {statistic}" if statistic else str(figure["metric"])


def _contradictions(path: Path, data: Mapping[str, Any]) -> Iterable[str]:
    """What no schema can see: names that must agree, a figure given twice."""
    if data["id"] != path.stem:
        yield f"$.id = {data['id']!r}: the file is called {path.stem!r}"
    seen: Counter[tuple[str, str, str]] = Counter()
    for i, measurement in enumerate(data["measurements"]):
        if (source := measurement["source"]) not in data["sources"]:
            known = ", ".join(data["sources"])
            yield f"$.measurements[{i}].source = {source!r}: $.sources has {known}"
        cell = ", ".join(f"{name} {value}" for name, value in sorted(measurement["cell"].items()))
        seen.update((cell, figure["arm"], metric(figure)) for figure in measurement["figures"])
    for (cell, arm, what), count in seen.items():
        if count > 1:
            yield f"$.measurements: {arm}, {what} ({cell}) is given {count} times"
