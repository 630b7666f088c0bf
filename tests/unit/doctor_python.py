# SPDX-License-Identifier: Apache-2.0
"""A made-up Python installation for the doctor: distributions that are metadata and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffspec import __version__, schemas
from diffspec.doctor.surroundings import Surroundings

#: vLLM-Ascend's plugins, as its distribution registers them.
ASCEND_PLUGINS = {
    "vllm.platform_plugins": ["ascend"],
    "vllm.general_plugins": ["ascend_kv_connector", "ascend_model_loader"],
}
OURS = {
    "vllm.general_plugins": {"diffspec": "diffspec.plugin:register"},
    "vllm_hust.extension_bundles": {"org.vllm-hust.diffspec": "diffspec_manifest"},
}


def install(
    site: Path, name: str, version: str, entry_points: dict[str, Any] | None = None
) -> None:
    """Put a distribution's metadata into the folder ``site``."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in (entry_points or {}).items():
        named = entries if isinstance(entries, dict) else {n: f"{name}:{n}" for n in entries}
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in named.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def install_ours(site: Path, *, manifest: str | None = None, **more: str) -> None:
    """Put this package's metadata into ``site``, with its manifest as the Manager wants it.

    ``manifest`` is another text for it, ``more`` are further manifests by the stem of their name.
    """
    install(site, "vllm-diffspec", __version__, OURS)
    text = json.dumps(schemas.manifest()) if manifest is None else manifest
    names = {schemas.MANIFEST: text} | {f"{stem}.json": text for stem, text in more.items()}
    folder = site / "diffspec_manifest"
    folder.mkdir()
    for name, content in names.items():
        (folder / name).write_text(content)
    record = site / f"vllm_diffspec-{__version__}.dist-info" / "RECORD"
    record.write_text("".join(f"diffspec_manifest/{name},,\n" for name in names))


def put_manager(folder: Path) -> str:
    """Put something called `vllm-hust-ext` into ``folder``/bin and return that as a PATH."""
    tool = folder / "bin" / "vllm-hust-ext"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return f"{tool.parent}:/usr/bin:/bin"


def answering(folder: Path, **answer: Any) -> str:
    """An executable that answers the doctor's question about plugins with what is given.

    ``found`` defaults to our own entry point, loadable and of this version.
    """
    ours = ["vllm.general_plugins", "diffspec", "diffspec.plugin:register"]
    full = {"found": [ours], "loaded": True, "version": __version__} | answer
    script = folder / "python"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(full)}\nEND\n")
    script.chmod(0o755)
    return str(script)


def surroundings(tmp_path: Path, environ: dict[str, str] | None = None, **answer: Any) -> Any:
    """Surroundings with ``tmp_path/site`` as the only place where anything is installed."""
    site = tmp_path / "site"
    site.mkdir(exist_ok=True)
    base = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    return Surroundings(base | (environ or {}), (str(site),), answering(tmp_path, **answer))


def write_speculative_config(site: Path) -> None:
    """Put vLLM's speculative configuration, with three fields, into the folder ``site``."""
    folder = site / "vllm" / "config"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    (folder / "speculative.py").write_text(
        "class SpeculativeConfig:\n"
        "    method: str\n    model: str\n    num_speculative_tokens: int\n"
    )
