# SPDX-License-Identifier: Apache-2.0
"""What the touch points of a host release look like in its real files, recorded as small JSON.

A snapshot holds, for each touch point of one release, the signature or the names that were asked
for, or why the point is not there. It is judged by :func:`diffspec.hosts.surface.check_surface`,
the comparison that an installed host goes through, so a table can be tested against releases that
are not installed.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from diffspec.hosts.releases import Release, rows_of
from diffspec.hosts.source import HostSource, stand_in
from diffspec.hosts.surface import Mismatch, check_surface, declares
from diffspec.hosts.touch_points import TOUCH_POINTS, TouchPoint

SCHEMA = "diffspec-surface/1"
FOLDER = Path(__file__).parent / "snapshots"
_REFRESH = "run: diffspec surface refresh"


class StaleSnapshotError(Exception):
    """The table asks for something that was not recorded, or nothing was."""


class _Dots:
    """Stands for a default, of which only that it is there was recorded."""

    def __repr__(self) -> str:
        return "..."


@dataclass(frozen=True)
class Snapshot:
    """One release: the archive it was read from and what was found, by touch point's target.

    A point is ``{"absent": why}``, or holds ``signature`` (its parameters, defaults as ``...``)
    where parameters were asked for, ``has`` and ``lacks`` where attributes were.
    """

    release: Release
    archive: str
    sha256: str
    points: dict[str, dict[str, Any]]

    def mismatches(self, table: Iterable[TouchPoint]) -> list[Mismatch]:
        """What differs between rows about this release and what was recorded of it.

        Raises:
            StaleSnapshotError: a row asks for what was not recorded.
        """
        found = []
        for point in table:
            known = self.points.get(point.target)
            if known is None or not _answers(known, point):
                raise StaleSnapshotError(
                    f"the snapshot of {self.release.title} does not say what {point.name} is; "
                    + _REFRESH
                )
            if "absent" in known:
                found.append(Mismatch(point, known["absent"], "absent"))
            else:
                module = _module(point, known)
                found += check_surface([point], {point.module: module}.__getitem__)
        return found

    def to_json(self) -> str:
        """The file's text."""
        document = {
            "schema": SCHEMA,
            "host": self.release.host,
            "version": self.release.version,
            "archive": self.archive,
            "sha256": self.sha256,
            "points": self.points,
        }
        return json.dumps(document, indent=1, sort_keys=True) + "\n"


def path_of(release: Release, folder: Path = FOLDER) -> Path:
    """Where the snapshot of a release is kept."""
    return folder / f"{release.host}-{release.version}.json"


def load(release: Release, folder: Path = FOLDER) -> Snapshot:
    """The recorded snapshot of a release.

    Raises:
        StaleSnapshotError: there is none, or it is of another form.
    """
    path = path_of(release, folder)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        known = (document["schema"], document["host"], document["version"])
        if known != (SCHEMA, release.host, release.version):
            raise StaleSnapshotError(f"{path.name} is of {known}; {_REFRESH}")
        return Snapshot(release, document["archive"], document["sha256"], document["points"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StaleSnapshotError(f"{path.name}: {error}; {_REFRESH}") from error


def asked_of(release: Release, table: Sequence[TouchPoint] = TOUCH_POINTS) -> list[TouchPoint]:
    """The rows that are about a release, on the devices where it is used."""
    return list(rows_of(table, release.host, release.version, release.platforms))


def record(
    release: Release,
    source: HostSource,
    *,
    archive: str,
    sha256: str,
    table: Sequence[TouchPoint] = TOUCH_POINTS,
) -> Snapshot:
    """Read every touch point of a release from its files."""
    points: dict[str, dict[str, Any]] = {}
    for point in asked_of(release, table):
        entry = points.setdefault(point.target, {})
        bare = TouchPoint(point.target, point.kind, point.stage, "", "")
        if missing := check_surface([bare], source.import_module):
            entry["absent"] = missing[0].text
            continue
        found = source.import_module(point.module)
        for part in point.name.split("."):
            found = getattr(found, part)
        if point.parameters:
            entry["signature"] = _text(found)
        if point.attributes:
            has = {name for name in point.attributes if declares(found, name)}
            entry["has"] = sorted({*entry.get("has", ()), *has})
            entry["lacks"] = sorted({*entry.get("lacks", ()), *point.attributes} - has)
    return Snapshot(release, archive, sha256, points)


def _answers(known: dict[str, Any], point: TouchPoint) -> bool:
    if "absent" in known:
        return True
    named = {*known.get("has", ()), *known.get("lacks", ())}
    return set(point.attributes) <= named and (not point.parameters or "signature" in known)


def _text(function: Any) -> str | None:
    if not callable(function) or isinstance(function, type):
        return None
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    made = [
        p if p.default is empty else p.replace(default=_Dots())
        for p in signature.parameters.values()
    ]
    return str(signature.replace(parameters=made))


def _module(point: TouchPoint, known: dict[str, Any]) -> Any:
    """A stand-in for the module of one touch point, with nothing else in it."""
    if signature := known.get("signature"):
        (node,) = ast.parse(f"def f{signature}: ...").body
        assert isinstance(node, ast.FunctionDef)
        found = stand_in(node)
    else:
        found = SimpleNamespace(**dict.fromkeys(known.get("has", ()), True))
    for part in reversed(point.name.split(".")):
        found = SimpleNamespace(**{part: found})
    return found
