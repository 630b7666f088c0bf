# SPDX-License-Identifier: Apache-2.0
"""Finds extensions as the extension manager does: by what distributions say of their own files.

Run as ``python -I -S bundle_discovery.py FOLDER...`` it prints, as JSON, what is installed in these
folders (each treated as a site-packages). Importing anything that belongs to a host or to an
extension raises meanwhile. Standard library only.
"""

from __future__ import annotations

import importlib.abc
import importlib.metadata
import json
import site
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

GROUP = "vllm_hust.extension_bundles"
#: The file names a manifest may have; a distribution must have exactly one of them in its folder.
MANIFEST_NAMES = (
    "vllm-hust-extension-v0.3.json",
    "vllm-hust-extension-v0.2.json",
    "vllm-hust-extension-v1.json",
    "extension-bundle-v1.json",
)
NEVER_IMPORTED = ("torch", "vllm", "vllm_ascend", "diffspec", "diffspec_manifest")


class Forbid(importlib.abc.MetaPathFinder):
    """Raises when a host or an extension is imported."""

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname.partition(".")[0] in NEVER_IMPORTED:
            raise RuntimeError(f"{fullname} is imported by discovery")


def _recorded(distribution: importlib.metadata.Distribution) -> dict[str, Path]:
    """Every file of RECORD by its name there."""
    files = distribution.files or []
    return {str(entry): Path(str(distribution.locate_file(entry))) for entry in files}


def _source_tree(distribution: importlib.metadata.Distribution) -> Path | None:
    """The checkout of an editable install."""
    text = distribution.read_text("direct_url.json")
    if text is None:
        return None
    origin = json.loads(text)
    url = urlparse(origin["url"])
    editable = origin.get("dir_info", {}).get("editable") is True and url.scheme == "file"
    return Path(url2pathname(url.path)) if editable else None


def _packages(distribution: importlib.metadata.Distribution, module: str) -> bool:
    """Whether a module is a file of this distribution, in RECORD or in its editable tree."""
    stem = module.replace(".", "/")
    names = (f"{stem}.py", f"{stem}/__init__.py")
    tree = _source_tree(distribution)
    in_tree = tree is not None and any(
        (root / name).is_file() for root in (tree, tree / "src") for name in names
    )
    return in_tree or any(name in _recorded(distribution) for name in names)


def read(distribution: importlib.metadata.Distribution, name: str, value: str) -> dict[str, Any]:
    """The extension that one entry point registers; ValueError says what is wrong with it."""
    if ":" in value:
        raise ValueError(f"{name}: must register a static module directory")
    folder = value.replace(".", "/")
    recorded = _recorded(distribution)
    paths = [recorded[f"{folder}/{m}"] for m in MANIFEST_NAMES if f"{folder}/{m}" in recorded]
    if len(paths) != 1:
        raise ValueError(f"{name}: {len(paths)} manifests in RECORD, must be exactly one")
    (path,) = paths
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{name}: the manifest is no regular file")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if manifest["extension_id"] != name:
        raise ValueError(f"{name}: the manifest is of {manifest['extension_id']}")
    own = {(point.group, point.name): point.value for point in distribution.entry_points}
    for wanted in (manifest.get("activation") or {}).get("entry_points", []):
        target = own.get((wanted["group"], wanted["name"]))
        if target is None:
            raise ValueError(f"{name}: declares an entry point that is not installed: {wanted}")
        if not _packages(distribution, target.partition(":")[0]):
            raise ValueError(f"{name}: {target} is not packaged by its distribution")
    return {
        "id": name,
        "distribution": distribution.metadata["Name"],
        "version": distribution.version,
        "path": str(path),
        "editable": _source_tree(distribution) is not None,
        "record": sorted(recorded),
        "manifest": manifest,
    }


def discover(folders: list[str]) -> list[dict[str, Any]]:
    """All extensions installed in ``folders``."""
    return [
        read(distribution, point.name, point.value)
        for distribution in importlib.metadata.distributions(path=folders)
        for point in distribution.entry_points
        if point.group == GROUP
    ]


if __name__ == "__main__":
    for place in sys.argv[1:]:
        site.addsitedir(place)
    sys.meta_path.insert(0, Forbid())
    found = discover(sys.argv[1:])
    loaded = sorted(set(sys.modules) & set(NEVER_IMPORTED))
    print(json.dumps({"extensions": found, "loaded": loaded}))
