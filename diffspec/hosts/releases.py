# SPDX-License-Identifier: Apache-2.0
"""Which releases of the hosts are accepted, and what has been done with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from diffspec.hosts.touch_point import Host, TouchPoint

#: Exact vLLM releases on which the test suite was run.
TESTED: tuple[str, ...] = ("0.28.0",)
#: vLLM's release lines (major, minor) that are accepted if the surface matches.
SUPPORTED: tuple[tuple[int, int], ...] = ((0, 28),)

Standing = Literal["run", "source", "next"]


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a host package whose touch points are recorded in the repository.

    ``standing``: *run*, the test suite runs on it; *source*, accepted where the adapter for it is
    used, its touch points compared with its source; *next*, looked at early, may differ. ``beside``
    is the vLLM release that a vLLM-Ascend release is made for. ``platforms`` are the device types
    that use it; rows of the table for other devices are not judged.
    """

    host: Host
    version: str
    standing: Standing
    platforms: tuple[str, ...]
    beside: str = ""

    @property
    def title(self) -> str:
        """Package and version, as in messages."""
        return f"{TITLE[self.host]} {self.version}"


TITLE: dict[Host, str] = {"vllm": "vLLM", "vllm-ascend": "vLLM-Ascend"}

RELEASES: tuple[Release, ...] = (
    Release("vllm", "0.25.1", "source", ("npu",)),
    Release("vllm", "0.28.0", "run", ("cpu", "cuda", "npu")),
    Release("vllm", "0.30.0", "next", ("cpu", "cuda", "npu")),
    Release("vllm", "0.32.0", "next", ("cpu", "cuda")),
    Release("vllm-ascend", "0.25.1rc1", "source", ("npu",), "0.25.1"),
    Release("vllm-ascend", "0.28.0rc1", "source", ("npu",), "0.28.0"),
    Release("vllm-ascend", "0.30.0rc2", "next", ("npu",), "0.30.0"),
)

#: Release lines of vLLM-Ascend and vLLM that go together as development builds of vLLM alone.
DEVELOPMENT_PAIRS: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = (((0, 25), (0, 28)),)
#: A build that was qualified under another project and is on no package index: its surface is known
#: only as far as that of the release it is made from.
UNPUBLISHED = (
    "vLLM-Ascend-HUST 0.25.1rc1 with vLLM-HUST 0.28.1rc1.dev319: on no package index, so its files "
    "were not compared; accepted as vLLM-Ascend 0.25 with a development build (.dev) of vLLM 0.28 "
    "if every touch point is there"
)


def hosts_of(platform: str | None) -> tuple[Host, ...]:
    """The host packages that a launch on a device type needs."""
    return ("vllm", "vllm-ascend") if platform == "npu" else ("vllm",)


def accepted(host: Host, platform: str | None) -> tuple[tuple[int, int], ...]:
    """Release lines (major, minor) of ``host`` that are accepted on a device type."""
    if platform != "npu":
        return SUPPORTED
    found = (
        r for r in RELEASES if r.host == host and r.standing != "next" and "npu" in r.platforms
    )
    return tuple(dict.fromkeys(Version(r.version).release[:2] for r in found))  # type: ignore[misc]


def is_accepted(host: Host, version: str, platform: str | None) -> bool:
    """Whether ``version`` is of an accepted release line."""
    try:
        return Version(version).release[:2] in accepted(host, platform)
    except InvalidVersion:
        return False


def pair_problem(vllm: str, ascend: str) -> str | None:
    """Why two releases, each of an accepted line, are not accepted together; None if they are.

    A vLLM-Ascend release is made for one line of vLLM. :data:`UNPUBLISHED` is the exception.
    """
    theirs, ours = Version(ascend).release[:2], Version(vllm).release[:2]
    made = {
        (Version(r.version).release[:2], Version(r.beside).release[:2])
        for r in RELEASES
        if r.beside and r.standing != "next"
    }
    if (theirs, ours) in made:
        return None
    if (theirs, ours) in DEVELOPMENT_PAIRS and Version(vllm).is_devrelease:
        return None
    return f"vLLM-Ascend {ascend} is not made for vLLM {vllm}"


def tested(platform: str | None) -> str:
    """What a refusal names as tested."""
    if platform != "npu":
        return ", ".join(TESTED)
    pairs = (r for r in RELEASES if r.host == "vllm-ascend" and r.standing != "next")
    return ", ".join(f"{r.title} with vLLM {r.beside}" for r in pairs) + " (by their source)"


def known(host: Host, platform: str | None) -> tuple[str, ...]:
    """Exact versions of ``host`` that count as tested on a device type."""
    if platform != "npu":
        return TESTED
    return tuple(r.version for r in RELEASES if r.host == host and r.standing != "next")


def lines(host: Host, platform: str | None) -> str:
    """The accepted release lines in words."""
    return " or ".join(f"{major}.{minor}.x" for major, minor in accepted(host, platform))


def rows_of(
    table: Sequence[TouchPoint], host: Host, version: str, platforms: Sequence[str]
) -> tuple[TouchPoint, ...]:
    """The rows about one release of a host package, on any of some device types."""
    return tuple(
        point
        for point in table
        if point.host == host
        and point.platform in ("any", *platforms)
        and holds_for(point, version)
    )


def holds_for(point: TouchPoint, version: str) -> bool:
    """Whether a row is about this release of its host package.

    Rows for some releases are about none that has no version number.
    """
    if not point.releases:
        return True
    try:
        return SpecifierSet(point.releases).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
