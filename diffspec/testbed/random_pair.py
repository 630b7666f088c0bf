# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama and an EAGLE-3 draft with random weights.

The draft knows nothing of the target, so almost every drafted token is rejected: for tests of
rejection, of shapes and of configuration checks. Its shape is free where a real one's is not (two
layers, another hidden size, a smaller vocabulary), which makes inputs that must be refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diffspec.testbed._checkpoint import BYTE_VOCAB, llama_config, torch_dtype, write_checkpoint

LOGIT_STD = 6.0
"""Spread of the logits. Rounding moves a logit by about 1e-5 in float32, far under typical gaps."""

QUERY_GAIN = 2.0
"""Standard deviation of the attention scores: peaked enough for the output to depend on content."""

_MLP_RATIO = 2
_ROPE_THETA = 10000.0
_RMS_EPS = 1e-6


@dataclass(frozen=True)
class RandomPair:
    """Where a built pair lies, and the vocabulary of each model."""

    target: Path
    draft: Path
    vocab: int
    draft_vocab: int


@dataclass(frozen=True)
class _Shape:
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def intermediate(self) -> int:
        return _MLP_RATIO * self.hidden


def build_random_pair(
    out: Path,
    *,
    seed: int = 0,
    layers: int = 4,
    draft_layers: int = 1,
    hidden: int = 128,
    draft_hidden: int | None = None,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    vocab: int = 512,
    draft_vocab: int | None = None,
    dtype: str = "float32",
    max_position_embeddings: int = 4096,
    draft_max_position_embeddings: int = 4096,
    norm_before_residual: bool = False,
) -> RandomPair:
    """Write `out/target` and `out/draft`; equal arguments give byte-identical folders.

    Args:
        out: folder to write into, created if missing.
        seed: of all weights.
        layers: the target's, at least 3, so that the three auxiliary states differ.
        draft_layers: the draft's; EAGLE-3 hosts expect 1.
        hidden: the target's hidden size.
        draft_hidden: the draft's hidden size; the target's if None. Another one gives the draft an
            embedding table of its own and `target_hidden_size` in its configuration.
        heads: query heads of both models.
        kv_heads: key/value heads of both models.
        head_dim: head dimension of both models.
        vocab: the target's vocabulary, at least 259.
        draft_vocab: the draft's output vocabulary; the target's if None. A smaller one adds `d2t`
            (int64, `[draft_vocab]`, target id minus draft id) and `t2d` (bool, `[vocab]`).
        dtype: `float32` or `bfloat16`.
        max_position_embeddings: the target's, in tokens.
        draft_max_position_embeddings: the draft's, in tokens.
        norm_before_residual: the draft's configuration flag of that name.

    Raises:
        ValueError: if an argument is out of range.
    """
    draft_vocab = vocab if draft_vocab is None else draft_vocab
    if vocab < BYTE_VOCAB:
        raise ValueError(f"vocab is at least {BYTE_VOCAB}; got {vocab}")
    if not 1 <= draft_vocab <= vocab:
        raise ValueError(f"draft_vocab is in 1..{vocab}; got {draft_vocab}")
    if layers < 3 or draft_layers < 1:
        raise ValueError(f"at least 3 and 1 layers are needed; got {layers} and {draft_layers}")
    if heads % kv_heads:
        raise ValueError(f"heads is a multiple of kv_heads; got {heads} and {kv_heads}")
    stored = torch_dtype(dtype)
    generator = torch.Generator().manual_seed(seed)
    shape = _Shape(hidden, heads, kv_heads, head_dim)
    draft_shape = _Shape(draft_hidden or hidden, heads, kv_heads, head_dim)

    target = write_checkpoint(
        out / "target",
        config=_config("LlamaForCausalLM", shape, layers, vocab, max_position_embeddings, dtype),
        weights=_target_weights(shape, layers, vocab, generator),
        dtype=stored,
        vocab=vocab,
    )
    config = _config(
        "LlamaForCausalLMEagle3",
        draft_shape,
        draft_layers,
        vocab,
        draft_max_position_embeddings,
        dtype,
    ) | {
        "draft_vocab_size": draft_vocab,
        "eagle_aux_hidden_state_layer_ids": [1, layers // 2, layers - 1],
        "norm_before_residual": norm_before_residual,
    }
    if draft_shape.hidden != hidden:
        config["target_hidden_size"] = hidden
    draft = write_checkpoint(
        out / "draft",
        config=config,
        weights=_draft_weights(draft_shape, draft_layers, hidden, vocab, draft_vocab, generator),
        dtype=stored,
        vocab=vocab,
    )
    return RandomPair(target=target, draft=draft, vocab=vocab, draft_vocab=draft_vocab)


def _target_weights(
    shape: _Shape, layers: int, vocab: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    weights = {
        "model.embed_tokens.weight": torch.randn(vocab, shape.hidden, generator=generator),
        "model.norm.weight": torch.ones(shape.hidden),
        "lm_head.weight": _linear(vocab, shape.hidden, generator, gain=LOGIT_STD),
    }
    for i in range(layers):
        weights |= _layer(f"model.layers.{i}", shape, shape.hidden, generator)
    return weights


def _draft_weights(
    shape: _Shape,
    layers: int,
    target_hidden: int,
    vocab: int,
    draft_vocab: int,
    generator: torch.Generator,
) -> dict[str, torch.Tensor]:
    weights = {
        "fc.weight": _linear(shape.hidden, 3 * target_hidden, generator),
        "norm.weight": torch.ones(shape.hidden),
        "lm_head.weight": _linear(draft_vocab, shape.hidden, generator, gain=LOGIT_STD),
        "midlayer.hidden_norm.weight": torch.ones(shape.hidden),
        **_layer("midlayer", shape, 2 * shape.hidden, generator),
    }
    for i in range(1, layers):
        weights |= _layer(f"layers.{i}", shape, shape.hidden, generator)
        weights[f"layers.{i}.hidden_norm.weight"] = torch.ones(shape.hidden)
    if shape.hidden != target_hidden:
        weights["embed_tokens.weight"] = torch.randn(vocab, shape.hidden, generator=generator)
    if draft_vocab < vocab:
        known = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
        weights["d2t"] = known - torch.arange(draft_vocab)
        weights["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, known, True)
    return weights


def _layer(
    prefix: str, shape: _Shape, width: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """One decoder layer whose attention reads `width` columns."""
    q, kv, hidden = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.hidden
    return {
        f"{prefix}.self_attn.q_proj.weight": _linear(q, width, generator, gain=QUERY_GAIN),
        f"{prefix}.self_attn.k_proj.weight": _linear(kv, width, generator),
        f"{prefix}.self_attn.v_proj.weight": _linear(kv, width, generator),
        f"{prefix}.self_attn.o_proj.weight": _linear(hidden, q, generator),
        f"{prefix}.mlp.gate_proj.weight": _linear(shape.intermediate, hidden, generator),
        f"{prefix}.mlp.up_proj.weight": _linear(shape.intermediate, hidden, generator),
        f"{prefix}.mlp.down_proj.weight": _linear(hidden, shape.intermediate, generator),
        f"{prefix}.input_layernorm.weight": torch.ones(hidden),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden),
    }


def _linear(rows: int, columns: int, generator: torch.Generator, gain: float = 1.0) -> torch.Tensor:
    """`[rows, columns]` that maps unit-variance input to outputs of standard deviation `gain`."""
    return torch.randn(rows, columns, generator=generator) * (gain / math.sqrt(columns))


def _config(
    architecture: str, shape: _Shape, layers: int, vocab: int, max_positions: int, dtype: str
) -> dict[str, Any]:
    return llama_config(
        architecture,
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        layers=layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab=vocab,
        max_positions=max_positions,
        rope_theta=_ROPE_THETA,
        rms_eps=_RMS_EPS,
        dtype=dtype,
    )
