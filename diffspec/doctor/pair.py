# SPDX-License-Identifier: Apache-2.0
"""A target and its draft, judged from their configuration files and the draft's headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffspec.configuration.models import trained_window
from diffspec.doctor import tensors
from diffspec.doctor.checkpoint import Checkpoint
from diffspec.doctor.findings import Finding, error, ok, warning
from diffspec.doctor.lanes import quantised
from diffspec.doctor.pair_facts import mrope, pair_facts
from diffspec.doctor.source import HostSource
from diffspec.doctor.surroundings import Platform
from diffspec.hosts.unsupported import LaunchFacts

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
USABLE = (_LLAMA, _QWEN3)

_SPECULATORS = {
    ("eagle3", "llama"): _LLAMA,
    ("eagle3", "qwen3"): _QWEN3,
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
}
_HANDS_OUT = "get_eagle3_default_aux_hidden_state_layers"
_REGISTRY = "model_executor/models/registry.py"


@dataclass(frozen=True)
class Pair:
    """A pair's facts for the list of refusals, its own findings, and the draft's length."""

    facts: LaunchFacts
    findings: tuple[Finding, ...]
    trained_window: int | None


def judge(
    target: Checkpoint,
    draft: Checkpoint,
    platform: Platform | None,
    source: HostSource | None = None,
) -> Pair:
    """Judge a pair; ``source`` is the installed vLLM, read for the target's class if given."""
    found = [
        *_architecture(draft),
        *_target_format(target, source),
        *tensors.check(draft),
        *_vocabulary(draft),
        *_aux_layers(target, draft),
        *_dtype(target, draft),
        *_quantisation(target, draft, platform),
        *_rope(target),
        *_special_tokens(target, draft),
    ]
    return Pair(pair_facts(target, draft), tuple(found), trained_window(draft.text))


def summary(target: Checkpoint, draft: Checkpoint) -> Finding:
    """The finding for a pair in which nothing was wrong."""
    vocabulary, reduced = draft.whole("vocab_size"), draft.whole("draft_vocab_size")
    of = f", of which the draft proposes {reduced}" if reduced not in (None, vocabulary) else ""
    return ok(
        "pair.fits",
        f"{draft.path.name} fits {target.path.name}: {draft.architecture() or 'EAGLE-3'}, one "
        f"layer, hidden size {draft.whole('hidden_size')} on {target.whole('hidden_size')}, "
        f"vocabulary {vocabulary}{of}",
    )


def served_length(target: Checkpoint) -> int | None:
    """The length in tokens that vLLM serves if none is asked for."""
    return trained_window(target.text)


def architecture(draft: Checkpoint) -> str | None:
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


def _architecture(draft: Checkpoint) -> list[Finding]:
    name = architecture(draft)
    known = ", ".join(sorted({a for a, cls in ARCHITECTURES.items() if cls in USABLE}))
    use = f"use an EAGLE-3 draft of one of these: {known}"
    if name is None:
        text = (
            f"{draft.path}/config.json names no architectures: vLLM cannot tell the draft's class"
        )
        return [error("pair.architecture", text, 'add "architectures": ["LlamaForCausalLMEagle3"]')]
    declared = draft.architecture()
    seen = name if declared in (None, name) else f"{name} (declared as {declared})"
    if name not in ARCHITECTURES:
        return [error("pair.architecture", f"vLLM 0.28 has no draft class {seen}", use)]
    if ARCHITECTURES[name] not in USABLE:
        text = f"the draft class {seen} lacks parts that DiffSpec calls"
        return [error("pair.architecture", text, use)]
    if name.lower().startswith("peagle"):
        text = f"the draft {seen} was trained for parallel drafting; DiffSpec drafts in sequence"
        return [error("pair.architecture", text, use)]
    return []


def _target_format(target: Checkpoint, source: HostSource | None) -> list[Finding]:
    if "speculators_model_type" in target.config:
        return [
            error(
                "pair.target_format",
                f"{target.path.name} is in speculators format: its own speculative configuration "
                "replaces yours in vLLM before any plugin sees it",
                "name target and draft separately",
            )
        ]
    name = target.architecture()
    if source is None or name is None:
        return []
    try:
        registry = (source.root / _REGISTRY).read_text(encoding="utf-8")
        location = tensors.registered(registry, name)
        if location is None:
            return [
                warning(
                    "pair.target_class",
                    f"the installed vLLM has no model class {name}",
                    "see that this host can serve the target at all",
                )
            ]
        module, cls = location
        path = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
        made = getattr(source.import_module(path), cls)
    except (OSError, ValueError, SyntaxError, AttributeError, ImportError):
        return []
    if isinstance(made, type) and not hasattr(made, _HANDS_OUT):
        return [
            error(
                "pair.target_class",
                f"vLLM's class of the target, {cls}, does not hand out the intermediate states "
                "that EAGLE-3 reads (SupportsEagle3)",
                "use another target",
            )
        ]
    return []


def _vocabulary(draft: Checkpoint) -> list[Finding]:
    full, reduced = draft.whole("vocab_size"), draft.whole("draft_vocab_size")
    if full is not None and reduced is not None and reduced > full:
        text = f"the draft has draft_vocab_size = {reduced}, more than its vocab_size = {full}"
        return [error("pair.draft_vocabulary", text, "correct the draft's config.json")]
    return tensors.check_map(draft, full, reduced)


def _aux_ids(draft: Checkpoint) -> list[Any] | None:
    eagle = draft.text.get("eagle_config")
    inner = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, Mapping) else None
    ids = draft.text.get("eagle_aux_hidden_state_layer_ids") or inner
    return list(ids) if isinstance(ids, list) else None


def _aux_layers(target: Checkpoint, draft: Checkpoint) -> list[Finding]:
    ids, layers = _aux_ids(draft), target.whole("num_hidden_layers")
    if ids is None:
        if layers is None:
            return []
        ids = [2, layers // 2, layers - 3]
        origin = f"vLLM's default for {layers} target layers"
    else:
        origin = "eagle_aux_hidden_state_layer_ids"
    fix = "set eagle_aux_hidden_state_layer_ids in the draft's config.json to those it was made for"
    found = []
    if any(type(i) is not int or i < 0 or (layers is not None and i > layers) for i in ids):
        text = f"{origin} = {ids}: the target has layers 0 to {layers}, 0 being its embedding"
        found.append(error("pair.aux_layers", text, fix))
    elif len(set(ids)) != len(ids):
        text = f"{origin} = {ids}: the same layer twice"
        found.append(error("pair.aux_layers", text, fix))
    reads = tensors.aux_states(draft)
    if reads is not None and reads != len(ids):
        text = f"the draft's fc.weight reads {reads} target states but {origin} names {len(ids)}"
        found.append(error("pair.aux_layers", text, fix))
    return found


def _dtype(target: Checkpoint, draft: Checkpoint) -> list[Finding]:
    ours, theirs = draft.dtype(), target.dtype()
    if ours is None or theirs is None or ours == theirs:
        return []
    text = f"the draft is stored in {ours}, the target in {theirs}: vLLM runs both in the target's"
    return [ok("pair.dtype", text)]


def quantisation(model: Checkpoint) -> str | None:
    """The method by which a model's weights are quantised, as its configuration says."""
    for part in (model.config, model.text):
        for key in ("quantization_config", "compression_config"):
            if isinstance(value := part.get(key), Mapping):
                return str(value.get("quant_method") or value.get("format") or key)
    return None


def _quantisation(
    target: Checkpoint, draft: Checkpoint, platform: Platform | None
) -> list[Finding]:
    found = []
    for role, model in (("target", target), ("draft", draft)):
        method = quantisation(model)
        if method is None:
            continue
        text = f"the {role} is quantised ({method})"
        if platform == "ascend":
            found.append(quantised(text))
        else:
            advice = "compare the output with the target's own before relying on it"
            found.append(warning("pair.quantisation", f"{text}, which nobody has tried", advice))
    return found


def _rope(target: Checkpoint) -> list[Finding]:
    if not mrope(target.text):
        return []
    text = "the target has M-RoPE: for text its three positions are equal, and the first is used"
    return [ok("pair.target_mrope", text)]


def _special_tokens(target: Checkpoint, draft: Checkpoint) -> list[Finding]:
    theirs, ours = (_ids(m.text.get("eos_token_id")) for m in (target, draft))
    if not theirs or not ours or theirs & ours:
        return []
    return [
        warning(
            "pair.special_tokens",
            f"the draft's eos_token_id {sorted(ours)} is not among the target's {sorted(theirs)}: "
            "it may be made for another tokenizer of the same size",
            "see that the draft was trained for this target",
        )
    ]


def _ids(value: object) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {v for v in values if type(v) is int}
