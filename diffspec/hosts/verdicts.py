# SPDX-License-Identifier: Apache-2.0
"""The table of touch points against every recorded release: what fits, what differs, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from diffspec.hosts.releases import RELEASES
from diffspec.hosts.snapshot import Snapshot, asked_of, load
from diffspec.hosts.touch_point import Host
from diffspec.hosts.touch_points import TOUCH_POINTS, TouchPoint

State = Literal["ok", "differs", "absent", "not used"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one release has for one target; ``text`` says how it differs."""

    state: State
    text: str = ""


@dataclass(frozen=True)
class Column:
    """One release, judged. ``verdicts`` go by target."""

    snapshot: Snapshot
    verdicts: dict[str, Verdict]

    @property
    def wrong(self) -> dict[str, Verdict]:
        """The targets that are not as the table says."""
        return {t: v for t, v in self.verdicts.items() if v.state in ("differs", "absent")}

    @property
    def must_fit(self) -> bool:
        """Whether a difference is an error: an accepted release, not one looked at early."""
        return self.snapshot.release.standing != "next"


def judge(snapshot: Snapshot, table: Sequence[TouchPoint] = TOUCH_POINTS) -> Column:
    """Hold one recorded release against the table.

    Raises:
        StaleSnapshotError: the table asks for what was not recorded.
    """
    release = snapshot.release
    asked = asked_of(release, table)
    verdicts = {point.target: Verdict("ok") for point in asked}
    for found in snapshot.mismatches(asked):
        verdicts[found.point.target] = Verdict(found.kind, found.text)
    unused = Verdict("not used")
    return Column(snapshot, {t: verdicts.get(t, unused) for t in targets(release.host, table)})


def columns(host: Host | None = None) -> list[Column]:
    """Every recorded release of a host package, or of all, in the order of the table of releases.

    Raises:
        StaleSnapshotError: one is missing or does not fit the table.
    """
    return [judge(load(release)) for release in RELEASES if host in (None, release.host)]


def targets(host: Host, table: Sequence[TouchPoint] = TOUCH_POINTS) -> list[str]:
    """The targets of a host package, once each, in table order."""
    return list(dict.fromkeys(point.target for point in table if point.host == host))


def to_json(judged: Sequence[Column]) -> dict[str, Any]:
    """The table as one JSON object."""
    return {
        "schema": "diffspec-surface-table/1",
        "releases": [
            {
                "host": column.snapshot.release.host,
                "version": column.snapshot.release.version,
                "standing": column.snapshot.release.standing,
                "archive": column.snapshot.archive,
                "sha256": column.snapshot.sha256,
                "touch_points": {
                    target: {"state": v.state} | ({"text": v.text} if v.text else {})
                    for target, v in column.verdicts.items()
                },
            }
            for column in judged
        ],
    }
