# SPDX-License-Identifier: Apache-2.0
"""Finds keys of a configuration file that are in the wrong place or under another name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

from diffspec import schemas
from diffspec.keys import is_ours, normalise

#: Keys of vLLM that show an object to be a speculative_config.
_SPECULATIVE = ("method", "model", "num_speculative_tokens", "draft_tensor_parallel_size")


def untangle(document: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Problems of nesting and naming, and the document as it was probably meant.

    The second part has known keys alone, each in its place, so that their values can be checked
    too; ``launch_options.speculative_config`` is there unless another kind of value was given for
    one of the two.
    """
    properties = schemas.load("diffspec")["properties"]
    options = properties["launch_options"]["properties"]
    problems: list[str] = []
    straight: dict[str, Any] = {}
    misplaced: dict[str, Any] = {}
    bare: dict[str, Any] = {}
    # A bare speculative_config has keys of vLLM that cannot be told from any unknown key.
    is_bare = any(_is_speculative(key) for key in document)
    for key, value in document.items():
        meant = _nearest(key, properties)
        if key in properties:
            straight[key] = value
        elif normalise(key) in options:
            problems.append(
                f"{key}: belongs inside launch_options. Here the Manager ignores it without a "
                "word, and the server would start without it"
            )
            misplaced[normalise(key)] = value
        elif _is_speculative(key) or (is_bare and meant is None):
            bare[key] = value
        else:
            problems.append(
                f"{key}: unknown key, which the Manager would ignore; {_suggest(key, properties)}"
            )
            if meant is not None and meant not in document:
                straight[meant] = value
    if bare:
        problems.append(
            f"{', '.join(bare)}: must be inside launch_options.speculative_config. Here the "
            "Manager ignores it without a word, and the server would start without DiffSpec"
        )
    if isinstance(straight.setdefault("launch_options", {}), dict):
        launch = misplaced | straight["launch_options"]
        straight["launch_options"] = _untangle_options(launch, bare, options, problems)
    return problems, straight


def _untangle_options(
    launch: Mapping[str, Any],
    bare: Mapping[str, Any],
    options: Collection[str],
    problems: list[str],
) -> dict[str, Any]:
    """``launch`` with known options alone; ``bare`` are keys meant for speculative_config."""
    straight = {key: value for key, value in launch.items() if key in options}
    inner = dict(bare)
    for key, value in launch.items():
        if key in options:
            continue
        if normalise(key) in options:
            problems.append(f"launch_options.{key}: the Manager wants {normalise(key)}")
            straight.setdefault(normalise(key), value)
        elif _is_speculative(key):
            problems.append(f"launch_options.{key}: belongs inside speculative_config")
            inner[key] = value
        else:
            problems.append(
                f"launch_options.{key}: the Manager takes no such option and would refuse to "
                f"launch; {_suggest(key, options)}. Other vLLM options are typed on the command "
                "line"
            )
    if "speculative_config" not in straight:
        if not inner:
            problems.append("launch_options.speculative_config is missing: it turns DiffSpec on")
        straight["speculative_config"] = inner
    elif isinstance(straight["speculative_config"], dict):
        straight["speculative_config"] = inner | straight["speculative_config"]
    return straight


def _is_speculative(key: str) -> bool:
    return is_ours(key) or normalise(key) in _SPECULATIVE


def _nearest(key: str, names: Collection[str]) -> str | None:
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    known = [name for name in names if not name.startswith("$")]
    close = difflib.get_close_matches(normalise(snake), known, n=1, cutoff=0.6)
    return close[0] if close else None


def _suggest(key: str, names: Collection[str]) -> str:
    if (near := _nearest(key, names)) is not None:
        return f"did you mean {near}?"
    return "known: " + ", ".join(name for name in names if not name.startswith("$"))
