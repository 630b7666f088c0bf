# SPDX-License-Identifier: Apache-2.0
"""A target and its draft, judged from their configuration files and headers: each, then the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffspec.configuration.checkpoint import Checkpoint
from diffspec.configuration.draft_class import class_problem
from diffspec.configuration.lengths import trained_window
from diffspec.configuration.pair_facts import mrope, pair_facts
from diffspec.doctor import tensors
from diffspec.doctor.findings import Finding, error, from_message, ok, warning
from diffspec.doctor.surroundings import Platform
from diffspec.hosts.launch import LaunchFacts
from diffspec.hosts.source import HostSource

_HANDS_OUT = "get_eagle3_default_aux_hidden_state_layers"
_REGISTRY = "model_executor/models/registry.py"


@dataclass(frozen=True)
class Pair:
    """What is known of a pair: facts for the list of refusals, findings, the draft's length."""

    facts: LaunchFacts
    findings: tuple[Finding, ...]
    trained_window: int | None


def judge(
    target: Checkpoint | None,
    draft: Checkpoint | None,
    platform: Platform | None,
    source: HostSource | None = None,
) -> Pair:
    """Judge a pair, or the one of the two that is here.

    ``source`` is the installed vLLM, read for the target's class if given.
    """
    found: list[Finding] = []
    if draft is not None:
        problem = class_problem(draft)
        found += [from_message("pair.architecture", "error", problem)] if problem else []
        found += [*tensors.files(draft, "draft"), *tensors.check(draft), *_vocabulary(draft)]
        found += _quantisation("draft", draft)
    if target is not None:
        found += [*_target_format(target, source), *tensors.files(target, "target")]
        found += [*_quantisation("target", target), *_rope(target, platform)]
    if target is not None and draft is not None:
        found += [*_aux_layers(target, draft), *_dtype(target, draft)]
        found += _special_tokens(target, draft)
    window = trained_window(draft.text) if draft is not None else None
    return Pair(pair_facts(target, draft), tuple(found), window)


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


def _quantisation(role: str, model: Checkpoint) -> list[Finding]:
    method = model.quantisation()
    if method is None:
        return []
    text = f"the {role} is quantised ({method})"
    advice = "compare the output with the target's own before relying on it"
    return [warning("pair.quantisation", f"{text}, which nobody has tried", advice)]


def _rope(target: Checkpoint, platform: Platform | None) -> list[Finding]:
    if not mrope(target.text):
        return []
    text = "the target has M-RoPE: for text its three positions are equal, and the first is used"
    if platform != "ascend":
        return [ok("pair.target_mrope", text)]
    advice = "send text alone; the lane's record has M-RoPE among what is to be off"
    return [warning("pair.target_mrope", text, advice)]


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
