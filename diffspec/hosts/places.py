# SPDX-License-Identifier: Apache-2.0
"""Which names of a model are meant as paths, and what is wrong with those that lead nowhere."""

from __future__ import annotations

from pathlib import Path


def path_problem(model: str) -> str | None:
    """Why a model's folder cannot be used; None if it can, or if ``model`` is no path.

    vLLM asks its model hub for whatever is no folder, even for a path it cannot parse.
    """
    if "://" in model:
        return None
    path = Path(model)
    try:
        if path.is_dir():
            return None if (path / "config.json").exists() else "the folder has no config.json"
        if path.exists():
            return None
    except OSError as error:  # a name too long to be one
        return error.strerror or str(error)
    # One slash is how a hub name looks; anything else with slashes is meant as a path.
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        hint = " (~ is not expanded inside JSON)" if model.startswith("~") else ""
        return f"no such folder{hint}"
    return None
