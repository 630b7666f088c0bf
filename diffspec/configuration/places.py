# SPDX-License-Identifier: Apache-2.0
"""Finds a model on this machine by the name a launch would use; never downloads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diffspec.hosts.places import path_problem


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model lies. Without ``folder``, ``why`` says why there is none, and ``wrong``
    whether a launch from here would fail for the same reason."""

    folder: Path | None
    why: str = ""
    wrong: bool = False


def find(model: str, environ: Mapping[str, str], revision: str | None = None) -> Place:
    """The folder of ``model``: a path, or the local hub cache's copy of a hub name.

    ``revision`` is a branch, tag or commit of a hub name; None is its main branch.
    """
    if problem := path_problem(model):
        return Place(None, problem, wrong=True)
    if "://" in model:
        return Place(None, "a remote address")
    path = Path(model)
    if path.is_dir():
        return Place(path)
    if path.is_file():
        if path.suffix == ".gguf":
            return Place(None, "a GGUF file, which vLLM 0.28 itself does not read")
        return Place(None, "a file, and no model folder", wrong=True)
    snapshot = _snapshot(model, environ, revision or "main")
    at = f" in revision {revision}" if revision else ""
    return Place(snapshot, "" if snapshot else f"not on this machine{at}")


def _snapshot(model: str, environ: Mapping[str, str], revision: str) -> Path | None:
    folder = _hub_cache(environ) / f"models--{model.replace('/', '--')}"
    try:
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = folder / "snapshots" / commit
    try:
        return snapshot if (snapshot / "config.json").is_file() else None
    except OSError:  # a name too long to be one
        return None


def _hub_cache(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps models, by its own variables in its own order."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if given := environ.get(name):
            return Path(os.path.expandvars(given)).expanduser()
    user = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '~'}/.cache"
    home = environ.get("HF_HOME") or f"{user}/huggingface"
    return Path(os.path.expandvars(home)).expanduser() / "hub"
