# SPDX-License-Identifier: Apache-2.0
"""The facts of a pair that the list of refusals judges, from raw configuration files.

vLLM reads the same files through classes that fill in defaults; where a default decides, it is
written out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffspec.configuration.checkpoint import Checkpoint
from diffspec.hosts.launch import LaunchFacts

_MODALITIES = ("vision_config", "audio_config", "visual", "thinker_config")
_ATTENTION_LAYERS = ("full_attention", "attention", "sliding_attention", "chunked_attention")
_RECURRENT_KEYS = (
    "full_attention_interval",
    "linear_num_value_heads",
    "hybrid_override_pattern",
    "mamba_d_state",
    "mamba_d_ssm",
    "ssm_cfg",
    "attn_layer_indices",
)
_MLA_TYPES = ("deepseek_v4",)


def pair_facts(target: Checkpoint | None, draft: Checkpoint | None) -> LaunchFacts:
    """What the configurations say for :data:`diffspec.hosts.unsupported.UNSUPPORTED`.

    One of the two may be missing: what it would say is then not known.
    """
    theirs = _target(target) if target is not None else {}
    return LaunchFacts(**theirs, **(_draft(draft) if draft is not None else {}))


def _target(target: Checkpoint) -> dict[str, Any]:
    return {
        "multimodal": any(isinstance(target.config.get(k), Mapping) for k in _MODALITIES),
        "target_mla": _mla(target.text),
        "target_hybrid": _hybrid(target.text),
        "target_hidden_size": target.whole("hidden_size"),
        "target_vocab_size": target.whole("vocab_size"),
        "target_full_attention_layers": _full_attention(target.text),
    }


def _draft(draft: Checkpoint) -> dict[str, Any]:
    width, heads = draft.whole("hidden_size"), draft.whole("num_attention_heads")
    size: float | None = draft.whole("head_dim")
    if size is None and width and heads:
        size = width / heads
    reads = draft.whole("target_hidden_size") or width
    return {
        "draft_mla": _mla(draft.text),
        "draft_layers": draft.whole("num_hidden_layers"),
        "draft_reads_hidden_size": reads if reads_aux_states(draft) else width,
        "draft_vocab_size": draft.whole("vocab_size"),
        "draft_heads": heads,
        "draft_kv_heads": draft.whole("num_key_value_heads") or heads,
        "draft_head_size": size,
        "draft_sliding_window": _sliding_window(draft.text),
        "draft_mrope": mrope(draft.text),
        "draft_rope_type": _rope_type(draft.text),
    }


def reads_aux_states(draft: Checkpoint) -> bool:
    """Whether the draft projects several of the target's states, as EAGLE-3 drafts do."""
    eagle = draft.text.get("eagle_config")
    return not isinstance(eagle, Mapping) or bool(eagle.get("use_aux_hidden_state", True))


def _mla(text: Mapping[str, Any]) -> bool:
    return text.get("kv_lora_rank") is not None or text.get("model_type") in _MLA_TYPES


def _hybrid(text: Mapping[str, Any]) -> bool:
    layers = text.get("layer_types")
    if isinstance(layers, list) and layers:
        return any(kind not in _ATTENTION_LAYERS for kind in layers)
    return any(text.get(key) is not None for key in _RECURRENT_KEYS)


def _full_attention(text: Mapping[str, Any]) -> int | None:
    """How many layers attend to everything, where the configuration says of each."""
    layers = text.get("layer_types")
    if isinstance(layers, list) and layers:
        return sum(kind in ("full_attention", "attention") for kind in layers)
    if text.get("model_type") == "mistral" and text.get("sliding_window") is not None:
        return 0
    return None


def _sliding_window(text: Mapping[str, Any]) -> int | None:
    window = text.get("sliding_window")
    window = window if type(window) is int else None
    if isinstance(layers := text.get("layer_types"), list) and layers:
        return window if "sliding_attention" in layers else None
    # Qwen's configurations carry a window that is off unless they say otherwise.
    default = not str(text.get("model_type", "")).startswith("qwen")
    return window if text.get("use_sliding_window", default) else None


def _rope_parameters(text: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        return {}
    # One set of parameters, or one per layer type; a one-layer draft uses the first.
    if rope and "rope_type" not in rope and all(isinstance(v, Mapping) for v in rope.values()):
        first: Mapping[str, Any] = next(iter(rope.values()))
        return first
    return rope


def mrope(text: Mapping[str, Any]) -> bool:
    """Whether a configuration asks for positions in several dimensions."""
    return "mrope_section" in _rope_parameters(text)


def _rope_type(text: Mapping[str, Any]) -> str | None:
    rope = _rope_parameters(text)
    kind = rope.get("rope_type", rope.get("type"))
    # The older spelling of plain RoPE with M-RoPE sections, judged as M-RoPE.
    return None if kind in (None, "mrope") else str(kind)
