# SPDX-License-Identifier: Apache-2.0
"""Write Hugging Face model folders: configuration, weights and a byte-level tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

UNK, BOS, EOS = 0, 1, 2
FIRST_BYTE = 3
BYTE_VOCAB = FIRST_BYTE + 256
"""Ids below this one are the special tokens and the 256 bytes; `<x000>`, `<x001>`, … follow."""

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype called `name`.

    Raises:
        ValueError: if it is neither `float32` nor `bfloat16`.
    """
    if name not in DTYPES:
        raise ValueError(f"dtype is one of {', '.join(DTYPES)}; got {name!r}")
    return DTYPES[name]


def byte_alphabet() -> list[str]:
    """Return the byte-level BPE alphabet; entry i is the character of token `FIRST_BYTE + i`."""
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_tokenizer(vocab: int) -> Tokenizer:
    """Return a tokenizer with one token per byte, no merges, and named extra tokens up to `vocab`.

    No BOS is added, so a prompt's token ids and its text stand for each other exactly.

    Raises:
        ValueError: if `vocab` has no room for the special tokens and all bytes.
    """
    if vocab < BYTE_VOCAB:
        raise ValueError(f"vocab holds at least {BYTE_VOCAB} tokens; got {vocab}")
    ids = {"<unk>": UNK, "<s>": BOS, "</s>": EOS}
    ids |= {character: FIRST_BYTE + i for i, character in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [AddedToken(f"<x{i:03d}>", normalized=False) for i in range(vocab - BYTE_VOCAB)]
    )
    return tokenizer


def llama_config(
    architecture: str,
    *,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    max_positions: int,
    rope_theta: float,
    rms_eps: float,
    dtype: str,
) -> dict[str, Any]:
    """Return a Llama `config.json` without biases and with untied embeddings."""
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_positions,
        "rope_theta": rope_theta,
        "rms_norm_eps": rms_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": dtype,
    }


def write_checkpoint(
    folder: Path,
    *,
    config: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    vocab: int,
) -> Path:
    """Write `folder` as a model that transformers and vLLM load by path, and return it.

    Floating-point weights are stored as `dtype`; others (`d2t`, `t2d`) as they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: (w.to(dtype) if w.is_floating_point() else w).contiguous()
        for name, w in sorted(weights.items())
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    byte_tokenizer(vocab).save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
        },
    )
    return folder


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
