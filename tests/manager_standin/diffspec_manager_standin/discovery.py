# SPDX-License-Identifier: Apache-2.0
"""Finds extensions through the metadata of installed distributions, importing none of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from diffspec_manager_standin.manifest import Manifest, parse

GROUP = "vllm_hust.extension_bundles"
MANIFEST_NAMES = (
    "vllm-hust-extension-v0.3.json",
    "vllm-hust-extension-v0.2.json",
    "vllm-hust-extension-v1.json",
    "extension-bundle-v1.json",
)


@dataclass(frozen=True)
class Bundle:
    """One discovered extension and the distribution it came with."""

    manifest: Manifest
    path: Path
    distribution: str
    distribution_version: str
    editable: bool

    @property
    def id(self) -> str:
        return self.manifest.extension_id

    def describe(self, enabled: bool) -> dict[str, Any]:
        """The object printed by ``inspect`` and ``list --json``."""
        document = self.manifest.document
        same = ("kind", "lifecycle_owner", "protocols", "implementation", "requires_services")
        return {
            "activation": {
                "additional_config": sorted(self.manifest.additional_config.items()),
                "entry_points": [
                    {"group": group, "name": name} for group, name in self.manifest.entry_points
                ],
                "environment": sorted(self.manifest.environment.items()),
            },
            "activation_blocker": None,
            "activation_ready": True,
            "bundle_id": self.id,
            "bundle_version": document["extension_version"],
            "components": document.get("components", []),
            "distribution": self.distribution,
            "distribution_version": self.distribution_version,
            "enabled": enabled,
            "experimental": True,
            "host": {"api_range": None, **self.manifest.host},
            "manifest_path": str(self.path),
            "requires_extensions": [],
            "resource_claims": [],
            "runtime": document["runtime"],
            **{key: document[key] for key in same},
        }


@dataclass(frozen=True)
class Found:
    """Everything discovered: usable bundles by id, and why the others are not usable."""

    bundles: Mapping[str, Bundle]
    errors: Mapping[str, str]

    def require(self, ids: Iterable[str]) -> list[Bundle]:
        """The bundles of these ids, sorted by id.

        Raises:
            ValueError: if one is not installed or its registration is broken.
        """
        wanted = sorted(set(ids))
        if missing := [i for i in wanted if i not in self.bundles and i not in self.errors]:
            raise ValueError(f"enabled Bundles are not installed: {missing}")
        for name in wanted:
            if name in self.errors:
                raise ValueError(self.errors[name])
        return [self.bundles[name] for name in wanted]


def discover() -> Found:
    """Read every registration that ``importlib.metadata`` can see."""
    bundles: dict[str, Bundle] = {}
    errors: dict[str, str] = {}
    for distribution in distributions():
        for entry in distribution.entry_points.select(group=GROUP):
            try:
                bundle = _load(distribution, entry)
                bundles[entry.name] = _prefer(bundles.get(entry.name), bundle)
            except (OSError, ValueError) as error:
                errors[entry.name] = str(error)
    return Found({i: b for i, b in bundles.items() if i not in errors}, errors)


def _prefer(known: Bundle | None, new: Bundle) -> Bundle:
    if known is None:
        return new
    if known.path.read_bytes() != new.path.read_bytes():
        raise ValueError(f"duplicate Bundle registrations for {new.id!r}")
    return new if known.editable else known


def _load(distribution: Distribution, entry: EntryPoint) -> Bundle:
    path, editable = _manifest_path(distribution, entry)
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{entry.name!r} manifest must be a regular file: {path}")
    try:
        manifest = parse(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{entry.name!r} manifest is invalid: {error}") from error
    if manifest.extension_id != entry.name:
        raise ValueError(
            f"{entry.name!r} differs from its manifest's extension_id {manifest.extension_id!r}"
        )
    for group, name in manifest.entry_points:
        _check_activation(distribution, entry.name, group, name)
    return Bundle(manifest, path, distribution.metadata["Name"], distribution.version, editable)


def _manifest_path(distribution: Distribution, entry: EntryPoint) -> tuple[Path, bool]:
    if ":" in entry.value:
        raise ValueError(f"{entry.name!r} must register a static module directory")
    folder = PurePosixPath(*entry.value.split("."))
    listed = [
        Path(str(distribution.locate_file(file)))
        for file in distribution.files or ()
        if file.parent == folder and file.name in MANIFEST_NAMES
    ]
    candidates = [root / folder / name for root in _roots(distribution) for name in MANIFEST_NAMES]
    present = listed or [path for path in candidates if path.exists()]
    if len(present) != 1:
        raise ValueError(f"{entry.name!r} must contain exactly one Bundle v1 manifest")
    return present[0], not listed


def _check_activation(distribution: Distribution, owner: str, group: str, name: str) -> None:
    """The plugin entry point must exist and lead to a file of the same distribution."""
    entries = list(distribution.entry_points.select(group=group, name=name))
    if not entries:
        raise ValueError(f"{owner!r} declares uninstalled activation entry points: {group}/{name}")
    module = PurePosixPath(*entries[0].module.split("."))
    wanted = {str(module.with_suffix(".py")), str(module / "__init__.py")}
    packaged = any(str(file) in wanted for file in distribution.files or ())
    if not packaged and not any(
        (root / w).is_file() for root in _roots(distribution) for w in wanted
    ):
        raise ValueError(
            f"{owner!r} activation entry point {group}/{name} targets not packaged by its "
            f"distribution: {entries[0].module}"
        )


def _roots(distribution: Distribution) -> Iterator[Path]:
    """The source folders of an editable install; none for any other."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = urlsplit(origin.get("url", ""))
    if origin.get("dir_info", {}).get("editable") is True and url.scheme == "file":
        root = Path(unquote(url.path))
        yield from (root, root / "src")
