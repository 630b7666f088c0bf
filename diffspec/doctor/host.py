# SPDX-License-Identifier: Apache-2.0
"""Python, the installed vLLM distributions, and the places where DiffSpec meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from diffspec.configuration.manager import PLAIN_HOSTS
from diffspec.doctor import lanes
from diffspec.doctor.findings import Finding, error, from_message, ok, warning
from diffspec.doctor.surroundings import ASCEND, Platform, Surroundings
from diffspec.hosts import releases
from diffspec.hosts.source import HostSource
from diffspec.hosts.surface import check_surface, rows_to_check
from diffspec.hosts.touch_point import Host

TESTED_PYTHON = (3, 11)
_DEEP_TIMEOUT_S = 300


def check(around: Surroundings, platform: Platform | None, *, deep: bool = False) -> list[Finding]:
    """The machine itself."""
    source = _source(around)
    found = [_python(), *_distributions(around, source, platform), *_ascend(around, platform)]
    if platform == "cuda":
        found.append(
            warning(
                "host.platform",
                "CUDA: written against the source of the tested release and never run on a GPU by "
                "this project",
                "try it with your own check of the output; report what you see",
            )
        )
    elif platform == "ascend":
        found.append(
            warning(
                "host.platform",
                "Ascend: written against the source of vLLM-Ascend and never run on an NPU by this "
                "project",
                "qualify it before relying on it; report what you see",
            )
        )
    elif platform is not None and not lanes.supported(platform):
        found.append(from_message("host.platform", "error", lanes.refused_platform(platform)))
    if source is not None:
        found += _deep(around, platform) if deep else _surface(around, source, platform)
    return found


def _source(around: Surroundings) -> HostSource | None:
    root = around.package("vllm")
    return HostSource(root) if root is not None else None


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    tested = ".".join(map(str, TESTED_PYTHON))
    if sys.version_info[:2] == TESTED_PYTHON:
        return ok("host.python", f"Python {version}")
    text = f"Python {version}: accepted, the tests of this project run on {tested}"
    return warning("host.python", text, f"use Python {tested} if something fails")


def _distributions(
    around: Surroundings, source: HostSource | None, platform: Platform | None
) -> list[Finding]:
    hosts = around.hosts()
    if not hosts:
        return [
            error(
                "host.distribution",
                f"no vLLM for {around.executable}: none of {', '.join(PLAIN_HOSTS)} is installed",
                "install one beside this package, for a CPU with: pip install 'vllm-diffspec[cpu]'",
            )
        ]
    if len(hosts) > 1:
        listed = " and ".join(f"{name} {version}" for name, version in hosts.items())
        return [
            error(
                "host.distribution",
                f"{listed} are installed together: each has its own files of the package vllm, and "
                "one has overwritten the other's",
                "uninstall all of them, then install one",
            )
        ]
    ((name, version),) = hosts.items()
    found = [_judged("vllm", name, version, platform)]
    own = source.version() if source else None
    if own is not None and not _same(own, version):
        found.append(
            error(
                "host.files",
                f"the package vllm calls itself {own} but its distribution is {name} {version}",
                f"reinstall {name}",
            )
        )
    return found


def _judged(host: Host, name: str, version: str, platform: Platform | None) -> Finding:
    device = lanes.device(platform)
    lines, tested = releases.lines(host, device), releases.tested(device)
    install = f"install a tested version: {tested}"
    try:
        parsed = Version(version)
    except InvalidVersion:
        return error("host.version", f"{name} {version}: not a version number", install)
    if not releases.is_accepted(host, version, device):
        return error("host.version", f"{name} {version}: only {lines} is supported", install)
    if parsed.public in releases.known(host, device):
        return ok("host.version", f"{name} {version}, a tested version")
    return warning(
        "host.version",
        f"{name} {version}: accepted as {lines}, tested is {tested}",
        "rely on the touch points below, or " + install,
    )


def _same(left: str, right: str) -> bool:
    try:
        return Version(left).public == Version(right).public
    except InvalidVersion:
        return left == right


def _ascend(around: Surroundings, platform: Platform | None) -> list[Finding]:
    version = around.version(ASCEND)
    if platform != "ascend" or version is None:
        return []
    found = [_judged("vllm-ascend", ASCEND, version, platform)]
    hosts, device = tuple(around.hosts().values()), lanes.device(platform)
    known = len(hosts) == 1 and releases.is_accepted("vllm", hosts[0], device)
    if known and releases.is_accepted("vllm-ascend", version, device):
        problem = releases.pair_problem(hosts[0], version)
        install = f"install a tested pair: {releases.tested(device)}"
        found += [] if problem is None else [error("host.pair", problem, install)]
    return found


def elsewhere(platform: Platform, here: Platform | None) -> list[Finding]:
    """What to say where a launch is judged for another platform than this machine has."""
    text = (
        f"judged for {platform}, which is not what is installed here ({here or 'no vLLM'}): the "
        "machine itself was not looked at"
    )
    found = [warning("host.elsewhere", text, "run the doctor on the machine that will serve")]
    if not lanes.supported(platform):
        found.append(from_message("host.platform", "warning", lanes.refused_platform(platform)))
    return found


def in_range(version: str, specifier: str) -> tuple[bool, bool]:
    """Whether ``version`` is in ``specifier`` with ``packaging`` before 26, and since.

    Earlier releases take a pre-release only if the range itself names one.

    Raises:
        InvalidVersion, InvalidSpecifier: one of the two is malformed.
    """
    range_, parsed = SpecifierSet(specifier), Version(version)
    since = range_.contains(parsed, prereleases=True)
    bounds = (s for s in range_ if s.operator in ("==", ">=", "<=", "~=", "==="))
    named = any(Version(s.version.removesuffix(".*")).is_prerelease for s in bounds)
    return since and (named or not parsed.is_prerelease), since


def _surface(around: Surroundings, source: HostSource, platform: Platform | None) -> list[Finding]:
    device = lanes.device(platform)
    known: dict[Host, str] = {"vllm": source.version() or "unknown"}
    if platform == "ascend" and (root := around.package("vllm_ascend")) is not None:
        source = HostSource(root, source.root)
        known["vllm-ascend"] = source.version() or "unknown"
    rows = rows_to_check(device, known)
    differing = check_surface(rows, source.import_module)
    found = [_differs(m.text, platform) for m in differing]
    if not found:
        found.append(
            ok(
                "host.surface",
                f"{len(rows)} touch points have the expected names and signatures; by their source "
                "only, nothing was imported (--deep imports them)",
            )
        )
    return found


def _differs(text: str, platform: Platform | None) -> Finding:
    tested = releases.tested(lanes.device(platform))
    return error("host.surface", text, f"install a tested version: {tested}")


def _deep(around: Surroundings, platform: Platform | None) -> list[Finding]:
    """The same comparison with the modules imported, by a process of its own."""
    words = ("-m", "diffspec.doctor.deep", lanes.device(platform) or "any")
    try:
        run = around.python(*words, timeout=_DEEP_TIMEOUT_S)
        answer = json.loads(run.stdout)
    except subprocess.TimeoutExpired:
        return [_broken(f"importing vLLM took more than {_DEEP_TIMEOUT_S} s")]
    except (OSError, ValueError) as failure:
        return [_broken(f"importing vLLM failed: {failure}")]
    found = [_differs(text, platform) for text in _texts(answer.get("differences", []))]
    if found:
        return found
    return [
        ok(
            "host.surface",
            f"{answer['rows']} touch points of vLLM {answer['version']} have the expected names "
            "and signatures; imported and inspected",
        )
    ]


def _texts(values: Iterable[object]) -> list[str]:
    return [str(value) for value in values]


def _broken(what: str) -> Finding:
    return error("host.surface", what, "see that `python -c 'import vllm'` works in this Python")
