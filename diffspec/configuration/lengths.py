# SPDX-License-Identifier: Apache-2.0
"""How long a context a model is made for and served with, by the rules of vLLM 0.28."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diffspec.keys import whole

_POSITIONS = "max_position_embeddings"
#: What the configuration classes of drafts and of their targets fill in where a file says nothing;
#: a test holds these against the classes.
DEFAULT_POSITIONS = {"llama": 2048, "qwen2": 32768, "qwen3": 32768}
# What these stretch is in max_position_embeddings already.
_UNSCALED_ROPE = ("llama3", "longrope", "su")


def trained_window(config: Mapping[str, Any]) -> int | None:
    """The longest context, in tokens, that a model is made for; None if its config does not say.

    ``config`` is the language model's part. ``max_position_embeddings`` or its class's default,
    and where RoPE stretches positions (linear, yarn) the stretched length.
    """
    if _POSITIONS in config:
        window = whole(config[_POSITIONS])
    else:
        window = DEFAULT_POSITIONS.get(str(config.get("model_type")))
    # Gemma 3 has counted its factor in, whatever the type.
    if window is None or "gemma3" in str(config.get("model_type")):
        return window
    scale = 1.0
    for kind, rope in _ropes(config):
        if kind in _UNSCALED_ROPE:
            continue
        factor = rope.get("factor")
        # Written so that nan, which Python's reader of JSON lets pass, is left out.
        if isinstance(factor, int | float) and 0 < factor < 1e6:
            scale = float(factor)
        if kind == "yarn":
            window = whole(rope.get("original_max_position_embeddings")) or window
    return window if scale == 1.0 else int(window * scale)


def served_length(config: Mapping[str, Any]) -> int | None:
    """The length, in tokens, that is served where none is asked for; None if it is not known."""
    length = trained_window(config)
    if any(kind in ("longrope", "su") for kind, _ in _ropes(config)):
        return whole(config.get("original_max_position_embeddings")) or length
    return length


def _ropes(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Type and parameters of RoPE; one of each per layer type in some models."""
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return
    nested = "rope_type" not in rope and all(isinstance(v, Mapping) for v in rope.values())
    for part in rope.values() if nested else (rope,):
        yield str(part.get("rope_type", part.get("type", "default"))), part
