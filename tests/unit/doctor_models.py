# SPDX-License-Identifier: Apache-2.0
"""Model folders of real shapes without weights, for the doctor's tests."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

#: The owner's speculative configuration on the qualified lane, but for the draft's place.
OWNERS_KEYS: dict[str, Any] = {
    "method": "eagle3",
    "num_speculative_tokens": 3,
    "draft_tensor_parallel_size": 4,
    "enforce_eager": False,
    "draft_context_policy": "diffspec",
    "diffspec_verification_mode": "auto",
    "diffspec_chunk_size": 64,
    "diffspec_token_budget": 2048,
    "diffspec_retrieval_interval": 4,
    "diffspec_max_tree_nodes": 50,
    "diffspec_tree_threshold": 0.75,
    "diffspec_adaptive_profile": True,
    "diffspec_long_context_threshold": 49152,
    "diffspec_long_context_depth": 2,
}
#: The target of the lane that was qualified on Ascend, in shape: Qwen3.5's family, 27B.
QWEN35_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "vision_config": {"depth": 27, "hidden_size": 1152},
    "text_config": {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "eos_token_id": 248044,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "rope_parameters": {"rope_type": "default", "mrope_section": [11, 11, 10]},
    },
}
#: A one-layer draft for it.
EAGLE3_27B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 5120,
    "num_hidden_layers": 1,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 248320,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 4096,
    "eos_token_id": 248044,
}
#: Drafts for Qwen3-1.7B and Qwen3-8B, which have another vocabulary and hidden size.
EAGLE3_QWEN3 = {
    name: {
        **EAGLE3_27B,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "eos_token_id": 151645,
    }
    for name, hidden, heads in (("1.7B", 2048, 16), ("8B", 4096, 32))
}
#: A small pair that fits.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 512,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 32768,
}
DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 4096,
    "draft_vocab_size": 1024,
    "max_position_embeddings": 2048,
}


def changed(config: dict[str, Any], changes: dict[str, Any] | None) -> dict[str, Any]:
    """A configuration with ``changes`` over it; None takes a key out."""
    merged = config | (changes or {})
    return {key: value for key, value in merged.items() if value is not None}


def write_model(folder: Path, config: dict[str, Any], *, weights: bool = True) -> Path:
    """A folder with a ``config.json`` and, unless told otherwise, a weight file without tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights:
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    return folder


def cache_model(cache: Path, name: str, config: dict[str, Any], ref: str = "main") -> Path:
    """The copy of a hub name as huggingface_hub keeps it in its ``cache``; returns the snapshot."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = write_model(folder / "snapshots" / f"commit-of-{ref}", config)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / ref).write_text(snapshot.name)
    return snapshot


def draft_shapes(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every tensor an EAGLE-3 draft of this configuration has."""
    hidden, size = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, 3 * config.get("target_hidden_size", hidden)),
        "midlayer.self_attn.q_proj.weight": (q, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, q),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
    }
    found: dict[str, tuple[str, tuple[int, ...]]] = {n: ("BF16", s) for n, s in shapes.items()}
    return {"d2t": ("I64", (config["draft_vocab_size"],)), **found}


def write_draft(
    folder: Path,
    config: dict[str, Any],
    *,
    offsets: list[int] | None = None,
    changes: dict[str, tuple[str, tuple[int, ...]] | None] | None = None,
) -> Path:
    """A draft's folder; its safetensors file has a true header and, ``d2t`` apart, only holes.

    ``offsets`` are the values of ``d2t`` (target id minus draft id; 7 for every id if None).
    ``changes`` replace tensors by name, None leaves one out.
    """
    write_model(folder, config)
    tensors = draft_shapes(config) | (changes or {})
    header: dict[str, Any] = {}
    at = 0
    for name, entry in tensors.items():
        if entry is None:
            continue
        dtype, shape = entry
        count = 1
        for side in shape:
            count *= side
        size = count * {"I64": 8, "BF16": 2, "F32": 4, "I8": 1, "I32": 4}[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if tensors.get("d2t") is not None:
            rows = tensors["d2t"][1][0]  # type: ignore[index]
            values = [7] * rows if offsets is None else offsets
            file.write(struct.pack(f"<{len(values)}q", *values))
        file.truncate(8 + len(text) + at)
    return folder
