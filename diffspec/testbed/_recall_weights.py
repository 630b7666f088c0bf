# SPDX-License-Identifier: Apache-2.0
"""The weights of the recall pair. See `recall_pair` for what they do and why.

Residual stream, width 160; each block holds the 24 entries of a token code::

    current | back1 | back2 | back3 | back4 | output | one | (unused)
"""

from __future__ import annotations

import torch

from diffspec.testbed._golay import CODE_LENGTH
from diffspec.testbed._recall_attention import (
    GROUP,
    HEADS,
    HIDDEN,
    KV_HEADS,
    Attention,
    clock_key,
    clock_query,
    match_rows,
    rms_of_units,
)

CURRENT, BACK1, BACK2, BACK3, BACK4, OUTPUT = (
    slice(i * CODE_LENGTH, (i + 1) * CODE_LENGTH) for i in range(6)
)
ONE = 6 * CODE_LENGTH

TOP_LOGIT = 30.0
"""Logit of the predicted token; every other token's is at most a third of it."""

INTERMEDIATE = 32
"""Width of the MLPs, which are all zero."""

# RMSNorm divisors: of an embedding (current, one), of a target feature and draft state (five
# blocks, one), and of the last layer's output (six blocks, one).
_NORM_EMBED = rms_of_units(CODE_LENGTH + 1)
_NORM_FEATURE = rms_of_units(5 * CODE_LENGTH + 1)
_NORM_FINAL = rms_of_units(6 * CODE_LENGTH + 1)
_EYE = torch.eye(CODE_LENGTH)


def target_weights(codes: torch.Tensor, layers: int) -> dict[str, torch.Tensor]:
    """Return the target's weights by checkpoint name, float32.

    Layer 0 writes the history, the last layer looks up; layers between them are zero.

    Args:
        codes: `[vocab, CODE_LENGTH]`, entries +1 and -1.
        layers: at least 2.
    """
    embedding = torch.zeros(len(codes), HIDDEN)
    embedding[:, CURRENT] = codes
    embedding[:, ONE] = 1.0
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": _head(codes, _NORM_FINAL),
    }
    attentions = [Attention(HIDDEN) for _ in range(layers)]
    _write_history(attentions[0])
    _write_lookup(attentions[-1])
    for i, attention in enumerate(attentions):
        weights |= _decoder_layer(f"model.layers.{i}", attention)
    return weights


def _write_history(attention: Attention) -> None:
    """Layer 0: head h copies the code of the token h + 1 back into its own block."""
    for kv_head in range(KV_HEADS):
        attention.key(kv_head)[:, ONE] = clock_key(_NORM_EMBED)
        attention.value(kv_head)[:CODE_LENGTH, CURRENT] = _NORM_EMBED * _EYE
    for head, block in enumerate((BACK1, BACK2, BACK3, BACK4)):
        attention.query(head)[:, ONE] = clock_query(_NORM_EMBED, back=head + 1)
        attention.output(head)[block, :CODE_LENGTH] = _EYE


def _write_lookup(attention: Attention) -> None:
    """Last layer: find the slot whose four previous tokens are our last four; copy its token.

    All heads do the same lookup and share the result, so that scores averaged over heads are as
    sharp as one head's.
    """
    norm = _NORM_FEATURE
    for kv_head in range(KV_HEADS):
        attention.key(kv_head)[:] = match_rows(
            [(block, norm) for block in (BACK1, BACK2, BACK3, BACK4)], HIDDEN
        )
        attention.value(kv_head)[:CODE_LENGTH, CURRENT] = norm * _EYE
    for head in range(HEADS):
        attention.query(head)[:] = match_rows(
            [(block, norm) for block in (CURRENT, BACK1, BACK2, BACK3)], HIDDEN
        )
        attention.output(head)[OUTPUT, :CODE_LENGTH] = _EYE / HEADS


def draft_weights(codes: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the draft's weights by checkpoint name, float32.

    Slot s of the draft pairs the embedding of token s + 1 with the feature of token s; the layer's
    projections read `[norm(embedding), norm(feature)]`, width 2 x 160.

    Args:
        codes: `[vocab, CODE_LENGTH]`, entries +1 and -1; the target's.
    """
    fc = torch.zeros(HIDDEN, 3 * HIDDEN)
    for block in (CURRENT, BACK1, BACK2, BACK3):
        fc[block, _feature(block)] = _EYE
    fc[ONE, HIDDEN + ONE] = 1.0
    # The embedding again, as filler: a first-step feature then has as many blocks, and so the same
    # RMSNorm divisor, as the draft's own state on later steps, which holds its last output there.
    fc[OUTPUT, CURRENT] = _EYE
    attention = Attention(2 * HIDDEN)
    _write_draft_lookup(attention, kv_head=0)
    _write_draft_shift(attention, kv_head=1)
    return {
        "fc.weight": fc,
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": _head(codes, _NORM_FEATURE),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        **_decoder_layer("midlayer", attention),
    }


def _write_draft_lookup(attention: Attention, kv_head: int) -> None:
    """Where did (token s+1, s, s-1, s-2) occur as (token u, u-1, u-2, u-3)? Copy token u + 1."""
    width = attention.width
    attention.key(kv_head)[:] = match_rows(
        [(_feature(block), _NORM_FEATURE) for block in (CURRENT, BACK1, BACK2, BACK3)], width
    )
    attention.value(kv_head)[:CODE_LENGTH, CURRENT] = _NORM_EMBED * _EYE
    for head in _query_heads(kv_head):
        attention.query(head)[:] = match_rows(
            [
                (CURRENT, _NORM_EMBED),
                *((_feature(block), _NORM_FEATURE) for block in (CURRENT, BACK1, BACK2)),
            ],
            width,
        )
        attention.output(head)[OUTPUT, :CODE_LENGTH] = _EYE / GROUP


def _write_draft_shift(attention: Attention, kv_head: int) -> None:
    """Attend this very slot and move the state on by one token, so that drafting can recurse.

    Added to the residual, the value turns (current, back1, back2, back3, output) into
    (embedding, current, back1, back2, 0): each block gains its successor and loses itself. With the
    lookup's result in `output`, the state before the final norm is then what `fc` would make of the
    target's features for the next token, the filler aside.
    """
    attention.key(kv_head)[:, ONE] = clock_key(_NORM_EMBED)
    value = attention.value(kv_head)
    moves = (
        (CURRENT, CURRENT, _NORM_EMBED),
        (BACK1, _feature(CURRENT), _NORM_FEATURE),
        (BACK2, _feature(BACK1), _NORM_FEATURE),
        (BACK3, _feature(BACK2), _NORM_FEATURE),
        (OUTPUT, None, 0.0),
    )
    for i, (block, source, norm) in enumerate(moves):
        dims = slice(i * CODE_LENGTH, (i + 1) * CODE_LENGTH)
        value[dims, _feature(block)] = -_NORM_FEATURE * _EYE
        if source is not None:
            value[dims, source] = norm * _EYE
        for head in _query_heads(kv_head):
            attention.output(head)[block, dims] = _EYE / GROUP
    for head in _query_heads(kv_head):
        attention.query(head)[:, ONE] = clock_query(_NORM_EMBED, back=0)


def _feature(block: slice) -> slice:
    """Columns of a feature block in the draft's `[embedding, feature]` input."""
    return slice(HIDDEN + block.start, HIDDEN + block.stop)


def _query_heads(kv_head: int) -> range:
    return range(kv_head * GROUP, (kv_head + 1) * GROUP)


def _head(codes: torch.Tensor, norm: float) -> torch.Tensor:
    """`[vocab, HIDDEN]`: logit = TOP_LOGIT x correlation of the output block with the code."""
    weight = torch.zeros(len(codes), HIDDEN)
    weight[:, OUTPUT] = codes * TOP_LOGIT * norm / CODE_LENGTH
    return weight


def _decoder_layer(prefix: str, attention: Attention) -> dict[str, torch.Tensor]:
    return attention.weights(prefix) | {
        f"{prefix}.mlp.gate_proj.weight": torch.zeros(INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": torch.zeros(INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": torch.zeros(HIDDEN, INTERMEDIATE),
        f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
    }
