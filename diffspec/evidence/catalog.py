# SPDX-License-Identifier: Apache-2.0
"""This extension's entry in the extension manager's catalogue, made from the records.

What a record says about another build never becomes a claim about this release: a record counts as
functional qualification only if it names this release.
"""

from __future__ import annotations

import datetime
import hashlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffspec import __version__, schemas
from diffspec.environment import EXTENSION_ID
from diffspec.evidence.records import CHECKOUT, Record

FORMAT = "vllm-hust.extension-catalog/v1"
_NOT_STATED = "not stated by any record"

_POLICY = {
    "availability": "available: the named commit can be installed and has the named manifest",
    "performance": "a verdict is about the tested cell alone; historical records are no effects",
    "preview": "no entry here is a preview",
    "runtime_state": "nothing here says that an extension is effective in a running process",
}
_CONFLICTS = [
    "another extension that sets a different --speculative-config in the same launch",
    "another speculative-decoding plugin in the same process, such as vSpec",
]
_ROLLBACK = [
    f"vllm-hust-ext extension disable {EXTENSION_ID} (the next launch is without it)",
    "restart the serving process",
    f"vllm-hust-ext extension forget {EXTENSION_ID}",
    "pip uninstall vllm-diffspec",
]


def catalog(
    records: Sequence[Record], *, repository: str, ref: str, commit: str, version: str = __version__
) -> dict[str, Any]:
    """A catalogue with this one entry, for the release ``version`` as it is at ``commit``.

    ``records`` are valid and come newest first, as from
    :func:`~diffspec.evidence.records.statements`. Raises ValueError when the result would not be
    valid, for instance for a commit that is no 40 hexadecimal digits.
    """
    source = {"ref": ref, "commit": commit}
    moment = datetime.datetime.now(datetime.timezone.utc)
    result = {
        "schema": FORMAT,
        "generated_at": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "source": source,
        "policy": dict(_POLICY),
        "extensions": [_entry(records, repository, source, version)],
    }
    if wrong := catalog_problems(result):
        raise ValueError("\n".join(wrong))
    return result


def catalog_problems(document: object) -> list[str]:
    """What a catalogue breaks of its format, one line each; empty when all is well."""
    found = schemas.problems("catalog", document)
    if found or not isinstance(document, dict):
        return found
    ids = [entry["id"] for entry in document["extensions"]]
    return [] if ids == sorted(ids) else [f"$.extensions: sorted by id, not {', '.join(ids)}"]


def checkout_commit() -> tuple[str, str]:
    """Branch (or HEAD) and commit of this checkout; ValueError when it is none or has changes.

    Changes count where they would make the entry untrue of the commit.
    """
    try:
        # An installed package may lie in a virtual environment inside somebody else's repository.
        ours = Path(_git("rev-parse", "--show-toplevel")).samefile(CHECKOUT)
        changed = _git("status", "--porcelain", "--", "manifest", "evidence", "diffspec")
        found = _git("rev-parse", "--abbrev-ref", "HEAD"), _git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        ours = False
    if not ours:
        raise ValueError("this is no git checkout: give --commit and --ref")
    if changed:
        raise ValueError("manifest, evidence or code differ from the commit: commit them first")
    return found


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _entry(
    records: Sequence[Record], repository: str, source: Mapping[str, str], version: str
) -> dict[str, Any]:
    judged = [r.data for r in records if r.kind == "qualification"]
    function = _function(judged, version)
    qualified = function["status"] == function["recovery"] == "passed"
    blocker = None
    if not qualified:
        blocker = (
            f"no record says that release {version} passed its functional checks and recovered"
        )
    return {
        "id": EXTENSION_ID,
        "name": "DiffSpec",
        "repository": repository,
        "source": dict(source),
        "maturity": "qualified" if qualified else "experimental",
        "availability": "available",
        "installation": _installation(repository, source["commit"]),
        "enablement": {"allowed": qualified, "blocker": blocker},
        "runtime_requirements": _requirements(judged),
        "functional_qualification": function,
        "tested_effects": [
            {
                "status": data["verdict"]["word"],
                "cell": data["verdict"]["cell"],
                "summary": f"{data['verdict']['reason']} Measured with {_build(data)}. "
                f"Not verified here: {' '.join(data['not_verified_here'])}",
                "evidence": [_page(data)],
            }
            for data in judged
        ],
        "expected_scenarios": [_scenario(r.data, version) for r in records],
        "recommendation": _recommendation(judged),
        "resource_tradeoff": "The draft's weights, its own KV cache, and drafting slots of at most "
        "2 % of the memory vLLM was given; in return a fixed draft context whatever the length.",
        "conflicts": list(_CONFLICTS),
        "rollback": {"owner": "operator", "steps": list(_ROLLBACK)},
    }


def _installation(repository: str, commit: str) -> dict[str, Any]:
    manifest = schemas.data_file("manifest", schemas.MANIFEST).read_bytes()
    activation = schemas.manifest()["activation"]["entry_points"][0]
    return {
        "type": "python-source",
        "repository": repository,
        "commit": commit,
        "manifest_path": f"manifest/{schemas.MANIFEST}",
        "manifest_sha256": f"sha256:{hashlib.sha256(manifest).hexdigest()}",
        "source_subdir": ".",
        "entrypoint": {"group": activation["group"], "name": activation["name"]},
    }


def _function(judged: Sequence[Mapping[str, Any]], version: str) -> dict[str, Any]:
    for data in judged:
        if version in data["subject"]["releases"]:
            return {**data["function"], "scope": data["verdict"]["cell"], "evidence": [_page(data)]}
    told = [f"{d['title']}: function {d['function']['status']}, {_build(d)}" for d in judged]
    return {
        "status": "unverified",
        "scope": "; ".join([f"release {version} has no qualification record", *told]),
        "recovery": "unverified",
        "evidence": [_page(data) for data in judged],
    }


def _requirements(judged: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    lanes = [data for data in judged if data["pair"]["state"] == "compatible"]
    hosts = [host for data in lanes for host in data["where"]["hosts"]]
    ascend = [h for h in hosts if "ascend" in h["name"].lower()]
    return {
        "models": _once(data["models"]["target"]["name"] for data in lanes),
        "hardware": _once(data["where"]["hardware"] for data in lanes),
        "topologies": _once(
            f"TP{data['settings'].get('tensor_parallel_size', 1)} "
            f"PP{data['settings'].get('pipeline_parallel_size', 1)}"
            for data in lanes
        ),
        "core": "; ".join(_once(_host(h) for h in hosts if h not in ascend)) or _NOT_STATED,
        "ascend": "; ".join(_once(map(_host, ascend))) or _NOT_STATED,
        "additional_models": [
            {
                "model": data["models"]["draft"]["name"],
                "sha256": data["models"]["checkpoint_sha256"],
                "required": True,
            }
            for data in lanes
        ],
        "storage": _NOT_STATED,
        "hbm": _NOT_STATED,
        "environment": {name: value for d in lanes for name, value in d["environment"].items()},
    }


def _scenario(data: Mapping[str, Any], version: str) -> dict[str, Any]:
    ours = version in data["subject"]["releases"] and data["function"]["status"] == "passed"
    return {
        "id": data["id"],
        "description": f"{data['title']}, recorded with {_build(data)}",
        "status": "verified" if ours else "unverified",
        "evidence": [_page(data)],
    }


def _recommendation(judged: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The newest verdict that recommends; without one the newest verdict and its reason."""
    for data in judged:
        if data["pair"]["recommended"]:
            return {"level": "recommended", "reason": data["verdict"]["reason"]}
    if not judged:
        return {"level": "none", "reason": "no pair was judged"}
    return {"level": judged[0]["verdict"]["word"], "reason": judged[0]["verdict"]["reason"]}


def _build(data: Mapping[str, Any]) -> str:
    releases = data["subject"]["releases"]
    return f"release {', '.join(releases)}" if releases else "another build than this release"


def _page(data: Mapping[str, Any]) -> str:
    return f"docs/evidence/{data['id']}.md"


def _host(host: Mapping[str, Any]) -> str:
    return " ".join(part for part in (host["name"], host["version"], host["commit"]) if part)


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
