# SPDX-License-Identifier: Apache-2.0
"""The draft's tensors, as their files' headers declare them, against its configuration."""

from __future__ import annotations

import ast
import re

from diffspec.configuration.checkpoint import Checkpoint, Tensor
from diffspec.configuration.pair_facts import reads_aux_states
from diffspec.doctor.findings import Finding, error, warning

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_FLOATS = ("BF16", "F16", "F32", "F64")
_CONFIG = "correct the draft's config.json, or use the checkpoint it belongs to"


def files(model: Checkpoint, role: str) -> list[Finding]:
    """What is wrong with a model's weight files, or why they could not be looked at."""
    if model.broken:
        text = f"{model.broken}: the {role}'s weights cannot be loaded"
        return [error("pair.weights", text, "download or copy the model whole")]
    if model.tensors is None:
        text = f"{model.unread}: the {role}'s weights were not looked at"
        return [warning("pair.weights", text, "check a copy in safetensors format to be sure")]
    return []


def check(draft: Checkpoint) -> list[Finding]:
    """Layers, shapes and types of the draft's tensors, where its headers could be read."""
    if draft.tensors is None:
        return []
    return [*_parts(draft), *_layers(draft), *_shapes(draft), *_types(draft)]


def _parts(draft: Checkpoint) -> list[Finding]:
    """The parts without which a file holds no EAGLE-3 draft, packed by a quantisation or not."""
    has = {part for name in draft.tensors or {} for part in name.split(".")}
    wanted = ["fc"] if reads_aux_states(draft) else []
    wanted += [] if "qkv_proj" in has else ["q_proj", "k_proj", "v_proj"]
    lacking = [part for part in (*wanted, "o_proj") if part not in has]
    if not lacking:
        return []
    text = f"the draft's files hold no {', '.join(lacking)}, which an EAGLE-3 draft has"
    return [error("pair.parts", text, "use a complete EAGLE-3 checkpoint")]


def find(draft: Checkpoint, ending: str) -> Tensor | None:
    """The tensor whose name is ``ending``, or ends in a dot and it."""
    for name, tensor in (draft.tensors or {}).items():
        if name == ending or name.endswith(f".{ending}"):
            return tensor
    return None


def aux_states(draft: Checkpoint) -> int | None:
    """How many target states the draft's projection reads, from its shape; None if not known."""
    fc = find(draft, "fc.weight")
    width = draft.whole("target_hidden_size") or draft.whole("hidden_size")
    if fc is None or len(fc.shape) != 2 or not width or fc.shape[1] % width:
        return None
    return fc.shape[1] // width


def _layers(draft: Checkpoint) -> list[Finding]:
    indices = {int(m[1]) for name in draft.tensors or {} if (m := _LAYER.search(name))}
    if len(indices) > 1:
        text = f"the draft's files hold {len(indices)} layers ({sorted(indices)})"
        return [error("pair.layer_tensors", text, "use a one-layer EAGLE-3 draft")]
    return []


def _shapes(draft: Checkpoint) -> list[Finding]:
    found = []
    for name, shape, why in _expected(draft):
        tensor = find(draft, name)
        if tensor is None or len(tensor.shape) != 2 or not _is_float(tensor):
            continue  # absent, or packed by a quantisation
        if tensor.shape != shape:
            text = (
                f"the draft's {name} is {tensor.shape[0]} x {tensor.shape[1]}; config.json says "
                f"{shape[0]} x {shape[1]} ({why})"
            )
            found.append(error("pair.shapes", text, _CONFIG))
    fc = find(draft, "fc.weight")
    width = draft.whole("target_hidden_size") or draft.whole("hidden_size")
    if fc is not None and len(fc.shape) == 2 and width and fc.shape[1] % width:
        text = (
            f"the draft's fc.weight reads {fc.shape[1]} features, no multiple of the target's "
            f"hidden size {width} (target_hidden_size, else hidden_size)"
        )
        found.append(error("pair.shapes", text, "use this target's draft"))
    return found


def _expected(draft: Checkpoint) -> list[tuple[str, tuple[int, int], str]]:
    hidden, heads = draft.whole("hidden_size"), draft.whole("num_attention_heads")
    vocab = draft.whole("vocab_size")
    if not hidden:
        return []
    rows = []
    if heads:
        size = draft.whole("head_dim") or hidden // heads
        kv_heads = draft.whole("num_key_value_heads") or heads
        rows += [
            ("self_attn.q_proj.weight", (heads * size, 2 * hidden), "heads, 2 x hidden_size"),
            ("self_attn.k_proj.weight", (kv_heads * size, 2 * hidden), "KV heads, 2 x hidden_size"),
            ("self_attn.o_proj.weight", (hidden, heads * size), "hidden_size, heads"),
        ]
    if vocab:
        rows.append(("embed_tokens.weight", (vocab, hidden), "vocab_size, hidden_size"))
        out = draft.whole("draft_vocab_size") or vocab
        rows.append(("lm_head.weight", (out, hidden), "draft_vocab_size, hidden_size"))
    fc = find(draft, "fc.weight")
    if fc is not None and len(fc.shape) == 2:
        rows.append(("fc.weight", (hidden, fc.shape[1]), "hidden_size, target states"))
    return rows


def _types(draft: Checkpoint) -> list[Finding]:
    kinds = {
        tensor.dtype
        for name, tensor in (draft.tensors or {}).items()
        if name.endswith("proj.weight") and not _is_float(tensor)
    }
    if not kinds:
        return []
    text = f"the draft's projections are stored as {', '.join(sorted(kinds))}"
    return [warning("pair.dtype", text, "use a draft in bfloat16, float16 or float32")]


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype in _FLOATS


def check_map(draft: Checkpoint, full: int | None, reduced: int | None) -> list[Finding]:
    """The table from draft ids to target ids (d2t) against the vocabularies, in tokens."""
    if draft.tensors is None:
        return []
    table = find(draft, "d2t")
    if table is None:
        if full is not None and reduced is not None and reduced < full:
            text = (
                f"the draft proposes {reduced} of {full} tokens but has no d2t table: its ids "
                f"would be taken for the first {reduced} of the target's"
            )
            return [error("pair.d2t", text, "use a checkpoint with its d2t table")]
        return []
    rows = reduced or full
    if rows is not None and table.shape != (rows,):
        shape = " x ".join(map(str, table.shape))
        text = f"d2t has {shape} entries but draft_vocab_size is {rows}"
        return [error("pair.d2t", text, _CONFIG)]
    if draft.target_ids is None or full is None:
        return []
    least, largest, different = draft.target_ids
    if least < 0 or largest >= full:
        text = (
            f"d2t leads to target ids from {least} to {largest}; the vocabulary has 0 to {full - 1}"
        )
        return [error("pair.d2t", text, "use this target's draft")]
    if different != table.shape[0]:
        text = f"d2t leads {table.shape[0]} draft ids to {different} different target ids"
        return [warning("pair.d2t", text, "see that d2t holds offsets (target id minus draft id)")]
    return []


def registered(registry: str, architecture: str) -> tuple[str, str] | None:
    """Module and class that vLLM's registry, given as source, has for an architecture."""
    for node in ast.walk(ast.parse(registry)):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == architecture:
                try:
                    pair = ast.literal_eval(value)
                except ValueError:
                    continue
                if isinstance(pair, tuple) and len(pair) == 2:
                    return str(pair[0]), str(pair[1])
    return None
