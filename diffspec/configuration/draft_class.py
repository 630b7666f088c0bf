# SPDX-License-Identifier: Apache-2.0
"""Which class of vLLM would run a draft, and whether DiffSpec can work with it."""

from __future__ import annotations

from collections.abc import Mapping

from diffspec.configuration.checkpoint import Checkpoint

_LLAMA, _QWEN3 = "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"
#: Names that vLLM 0.28 knows for EAGLE-3 drafts, with the class that runs each; a test holds them
#: against its registry. Only the two classes above have the parts DiffSpec calls.
ARCHITECTURES = {
    "Eagle3LlamaForCausalLM": _LLAMA,
    "LlamaForCausalLMEagle3": _LLAMA,
    "Eagle3MiniMaxM2ForCausalLM": _LLAMA,
    "Eagle3Qwen2_5vlForCausalLM": _LLAMA,
    "Eagle3Qwen3vlForCausalLM": _LLAMA,
    "Eagle3Qwen3ForCausalLM": _QWEN3,
    "PEagleDraftModel": _LLAMA,
    "PeagleLlamaForCausalLM": _LLAMA,
    "PeagleQwen3ForCausalLM": _QWEN3,
    "Eagle3DeepseekV2ForCausalLM": "Eagle3DeepseekV2ForCausalLM",
    "Eagle3DeepseekV3ForCausalLM": "Eagle3DeepseekV2ForCausalLM",
}
_USABLE = (_LLAMA, _QWEN3)

_SPECULATORS = {
    ("eagle3", "llama"): _LLAMA,
    ("eagle3", "qwen3"): _QWEN3,
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
}


def class_problem(draft: Checkpoint) -> str | None:
    """Why DiffSpec cannot run the draft's class, and after the last semicolon what to do."""
    name = _looked_up(draft)
    if name is None:
        return (
            f"{draft.path}/config.json names no architectures: vLLM cannot tell the draft's class; "
            'add "architectures": ["LlamaForCausalLMEagle3"]'
        )
    declared = draft.architecture()
    seen = name if declared in (None, name) else f"{name} (declared as {declared})"
    known = ", ".join(sorted({a for a, cls in ARCHITECTURES.items() if cls in _USABLE}))
    use = f"use an EAGLE-3 draft of one of these: {known}"
    if name not in ARCHITECTURES:
        return f"vLLM 0.28 has no draft class {seen}; {use}"
    if ARCHITECTURES[name] not in _USABLE:
        return f"the draft class {seen} lacks parts that DiffSpec calls; {use}"
    if name.lower().startswith("peagle"):
        return f"the draft {seen} was trained for parallel drafting, and DiffSpec does not; {use}"
    return None


def _looked_up(draft: Checkpoint) -> str | None:
    """The name vLLM looks up for a draft: it puts Eagle3 before one that does not say it."""
    kind = draft.config.get("speculators_model_type")
    if isinstance(kind, str):
        layer = draft.config.get("transformer_layer_config")
        model = layer.get("model_type", "llama") if isinstance(layer, Mapping) else "llama"
        return _SPECULATORS.get((kind, str(model)), f"{kind} of {model}")
    name = draft.architecture()
    if name is None or name in ARCHITECTURES:
        return name
    return name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}"
