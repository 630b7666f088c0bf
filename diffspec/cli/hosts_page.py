# SPDX-License-Identifier: Apache-2.0
"""The page about host releases, written from the recorded snapshots and the tables.

python -m diffspec.cli.reference hosts > docs/hosts.md
"""

from __future__ import annotations

from collections.abc import Sequence

from diffspec.evidence.pages import bullets, fill, table
from diffspec.hosts.ascend_lane import LANE, NOTES
from diffspec.hosts.releases import TITLE, UNPUBLISHED
from diffspec.hosts.touch_point import Host
from diffspec.hosts.verdicts import Column, columns, targets

_HEAD = """# Host releases

Written by `python -m diffspec.cli.reference hosts` from `diffspec/hosts/releases.py`, the tables of
touch points and the snapshots in `diffspec/hosts/snapshots`; a test keeps it current.

Each snapshot holds, for one release, the signatures and names that DiffSpec relies on, read from
the files of its source package; nothing of a package runs for it. A launch goes through the same
comparison with what is installed, and is refused with the version, the touch point and the tested
versions if they do not fit.

    diffspec surface show                      # the tables below; exit status 1 if one must change
    diffspec surface check vllm vllm_ascend    # package folders of any release
    diffspec surface refresh                   # download the source packages, record anew

All three take `--json`. *run*: the test suite runs on it. *source*: accepted on Ascend, compared
with its source, never run on an NPU by this project. *next*: looked at early, not accepted, and
allowed to differ.
"""


_LANE = """## The lane that was qualified on Ascend

What the owner's launch of 2026-09-04 had
([record](evidence/sage-mate-20260904-tp4-graph.md)). A launch outside of it is named in one warning
when it starts and by `diffspec doctor`; what cannot work is refused instead
([reference.md](reference.md)).
"""


_NOTES = "Part of the lane, and named at start and by `diffspec doctor` all the same:\n"


def hosts_markdown() -> str:
    """The whole page."""
    judged = columns()
    releases = table(
        ("release", "standing", "for", "archive", "SHA-256"),
        (
            (
                c.snapshot.release.title,
                c.snapshot.release.standing,
                ", ".join(c.snapshot.release.platforms),
                f"`{c.snapshot.archive}`",
                f"`{c.snapshot.sha256}`",
            )
            for c in judged
        ),
    )
    parts = [_HEAD, releases, fill(f"{UNPUBLISHED}.") + "\n"]
    for host in dict.fromkeys(column.snapshot.release.host for column in judged):
        ours = [column for column in judged if column.snapshot.release.host == host]
        parts += [f"## {TITLE[host]}\n", _table(host, ours)]
        if told := [
            f"{column.snapshot.release.title}: {verdict.text}"
            for column in ours
            for verdict in column.wrong.values()
        ]:
            parts.append(bullets(told) + "\n")
    lane = table(("requirement", "known beyond it"), ((r.requires, r.known) for r in LANE))
    notes = bullets([f"{r.requires}: {r.known}" for r in NOTES])
    return "\n".join([*parts, _LANE, lane, _NOTES, notes])


def _table(host: Host, judged: Sequence[Column]) -> str:
    return table(
        ("touch point", *(column.snapshot.release.version for column in judged)),
        (
            (f"`{target}`", *(column.verdicts[target].state for column in judged))
            for target in targets(host)
        ),
    )
