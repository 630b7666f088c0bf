# SPDX-License-Identifier: Apache-2.0
"""What a model folder's ``config.json`` says, as far as a configuration depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffspec.configuration.document import read
from diffspec.hosts.unsupported import LaunchFacts
from diffspec.keys import whole
from diffspec.settings import ConfigError

# Positions that these types scale are already in max_position_embeddings, as vLLM reads them.
_UNSCALED_ROPE = ("default", "llama3", "longrope", "su")


def read_model_config(folder: Path) -> dict[str, Any]:
    """The text model's part of ``folder/config.json``; a nested ``text_config`` has precedence.

    Raises:
        ConfigError: no such folder or file, or not a JSON object.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; download the model first and give its folder")
    path = folder / "config.json"
    if not path.exists():
        raise ConfigError(f"{folder}: the folder has no config.json")
    config = read(path)
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: must hold a JSON object")
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def trained_window(config: Mapping[str, Any]) -> int | None:
    """The longest context, in tokens, that a model is made for; None if its config does not say.

    ``max_position_embeddings``, and where RoPE stretches positions (linear, yarn) the stretched
    length, by vLLM's own rule.
    """
    window = whole(config.get("max_position_embeddings"))
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if window is None or not isinstance(rope, Mapping):
        return window
    kind = rope.get("rope_type", rope.get("type", "default"))
    factor = rope.get("factor")
    if kind in _UNSCALED_ROPE or not isinstance(factor, int | float):
        return window
    if kind == "yarn":
        window = whole(rope.get("original_max_position_embeddings")) or window
    return int(window * factor)


def pair_facts(target: Mapping[str, Any], draft: Mapping[str, Any]) -> LaunchFacts:
    """The shapes of both that must agree, for the list of refusals."""
    eagle = draft.get("eagle_config")
    aux = eagle.get("use_aux_hidden_state", True) if isinstance(eagle, Mapping) else True
    width = whole(draft.get("hidden_size"))
    reads = whole(draft.get("target_hidden_size")) or width
    return LaunchFacts(
        target_hidden_size=whole(target.get("hidden_size")),
        target_vocab_size=whole(target.get("vocab_size")),
        draft_layers=whole(draft.get("num_hidden_layers")),
        draft_reads_hidden_size=reads if aux else width,
        draft_vocab_size=whole(draft.get("vocab_size")),
    )
