# SPDX-License-Identifier: Apache-2.0
"""States and evidence of one extension: what ``check`` prints and ``run`` decides on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.specifiers import SpecifierSet

from diffspec_manager_standin.discovery import Bundle

PROVIDER = "vllm"
_DEFAULT_API_VERSION = "1.0"


@dataclass(frozen=True)
class Verdict:
    """``compatible`` is None where something needed for an answer is unknown."""

    compatible: bool | None
    evidence: list[str]


def judge(bundle: Bundle, configuration: Mapping[str, Any]) -> Verdict:
    """Compare the manifest's ranges with what is installed, or with what the operator says is.

    The saved ``host_version``, ``host_api_version`` and ``protocol_versions`` are believed as they
    stand. The host is not imported here, so its protocols are unknown unless they are given.
    """
    host = bundle.manifest.host
    if host["provider"] != PROVIDER:
        return Verdict(False, [f"unknown provider {host['provider']!r}"])
    answers: list[bool | None] = []
    evidence = ["host capability registry is unavailable; used legacy module probes"]
    found = configuration.get("host_version") or _installed(host["name"])
    if found is None:
        answers.append(None)
        evidence.append("host version is unavailable; compatibility is unverified")
    else:
        answers.append(_compare("host version", found, host["version_range"], evidence))
    if host.get("api_range") is not None:
        api = configuration.get("host_api_version", _DEFAULT_API_VERSION)
        answers.append(_compare("host API version", api, host["api_range"], evidence))
    known = configuration.get("protocol_versions", {})
    if not isinstance(known, dict):
        return Verdict(False, [*evidence, "protocol_versions must be an object"])
    for protocol in bundle.manifest.document["protocols"]:
        name, wanted = protocol["name"], protocol["version_range"]
        if wanted is None:
            evidence.append(
                f"protocol {name} is not independently versioned; compatibility is governed by "
                "host ranges and acceptance evidence"
            )
        elif name in known:
            answers.append(_compare(f"protocol {name}", known[name], wanted, evidence))
        else:
            answers.append(None)
            evidence.append(f"protocol {name} version is unavailable")
    if False in answers:
        return Verdict(False, evidence)
    return Verdict(None if None in answers else True, evidence)


def states(bundle: Bundle, verdict: Verdict, *, enabled: bool, effective: bool) -> list[str]:
    """The words ``check`` prints, in its order."""
    named = {
        "installed": True,
        "discovered": True,
        "compatible": verdict.compatible is True,
        "incompatible": verdict.compatible is False,
        # Says nothing about a configuration: none need be saved, none is looked at.
        "configured": verdict.compatible is not False and not bundle.manifest.descriptor_only,
        "enabled": enabled,
        "degraded": verdict.compatible is None,
        "runtime_effective": enabled and effective,
    }
    return [name for name, holds in named.items() if holds]


def refuse_unless_launchable(bundle: Bundle, verdict: Verdict) -> None:
    """What ``run`` wants of each enabled extension.

    Raises:
        ValueError: with the evidence in it.
    """
    why = "; ".join(verdict.evidence)
    if bundle.manifest.descriptor_only:
        raise ValueError(f"extension {bundle.id!r} is descriptor-only and cannot be launched")
    if verdict.compatible is False:
        raise ValueError(f"refusing to launch incompatible extension {bundle.id!r}: {why}")
    trusted = bundle.manifest.document["runtime"]["isolation"] == "trusted_in_process"
    if trusted and verdict.compatible is None:
        raise ValueError(
            f"refusing to launch unverified trusted in-process extension {bundle.id!r}: {why}"
        )


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _compare(what: str, found: object, wanted: str, evidence: list[str]) -> bool:
    # Whether a pre-release is inside a range without pre-release bounds is left to `packaging`,
    # whose answer changed with version 26; a Manager has the same dependence.
    inside = SpecifierSet(wanted).contains(str(found))
    evidence.append(f"{what} {found} is {'inside' if inside else 'outside'} {wanted}")
    return inside
