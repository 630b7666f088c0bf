# SPDX-License-Identifier: Apache-2.0
"""Which extensions the stand-in's Manager finds in a folder, in a process that must import none.

Run as ``python -I -S bundle_discovery.py LIBRARY FOLDER...`` it prints, as JSON, what is installed
in the FOLDERs (each treated as a site-packages); LIBRARY is where ``packaging`` lies. Importing
anything that belongs to a host or to an extension raises meanwhile.
"""

from __future__ import annotations

import importlib.abc
import json
import site
import sys
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).parents[1] / "manager_standin"
NEVER_IMPORTED = ("torch", "vllm", "vllm_ascend", "diffspec", "diffspec_manifest")


class Forbid(importlib.abc.MetaPathFinder):
    """Raises when a host or an extension is imported."""

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname.partition(".")[0] in NEVER_IMPORTED:
            raise RuntimeError(f"{fullname} is imported by discovery")


def main(library: str, *folders: str) -> None:
    """Print ``{"extensions": [...], "errors": {...}, "loaded": [...]}``."""
    sys.path += [str(STAND_IN), library]
    from diffspec_manager_standin.discovery import discover

    del sys.path[-2:]  # what is installed there is not asked for
    for folder in folders:
        site.addsitedir(folder)
    sys.meta_path.insert(0, Forbid())
    found = discover()
    extensions = [
        {
            "id": bundle.id,
            "distribution": bundle.distribution,
            "version": bundle.distribution_version,
            "path": str(bundle.path),
            "in_record": not bundle.editable,
            "manifest": bundle.manifest.document,
        }
        for bundle in found.bundles.values()
    ]
    loaded = sorted(set(sys.modules) & set(NEVER_IMPORTED))
    print(json.dumps({"extensions": extensions, "errors": found.errors, "loaded": loaded}))


if __name__ == "__main__":
    main(*sys.argv[1:])
