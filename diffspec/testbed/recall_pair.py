# SPDX-License-Identifier: Apache-2.0
"""The recall pair: a Llama that recites its prompt, and an EAGLE-3 draft that must find the source.

Both are written down by formula; nothing is trained.

**Target.** Given `… a b c d X … a b c d`, greedy decoding emits X, however far back the first
occurrence is (to 32K tokens): an induction head over 4-grams (C. Olsson et al., "In-context
Learning and Induction Heads", 2022). The first four or more tokens of a passage of the prompt make
it recite the passage. Layer 0 writes the codes of the four previous tokens beside each token's own;
the last layer matches (current, 1 back, 2 back, 3 back) against (1, 2, 3, 4 back) and copies the
code of the token found.

**Draft.** One EAGLE-3 layer doing the same lookup *with its own attention*. It proposes the right
token when the source slot is among what it attends, and an unrelated one otherwise. From the
target's features it takes the token codes alone, never the prediction, so nothing leaks past its
attention. Whether retrieval works thus has a right answer: accepted or not.

    python -m diffspec.testbed.recall_pair OUT [--seed 0] [--vocab 512] [--dtype float32] …
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffspec.testbed._checkpoint import BYTE_VOCAB, llama_config, torch_dtype, write_checkpoint
from diffspec.testbed._golay import CODE_SIZE, golay_codes
from diffspec.testbed._recall_attention import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    RMS_EPS,
    ROPE_THETA,
    check_separation,
)
from diffspec.testbed._recall_weights import INTERMEDIATE, draft_weights, target_weights
from diffspec.testbed.recall_prompts import RecallPrompt, make_recall_prompt

__all__ = ["RecallPair", "RecallPrompt", "build_recall_pair", "main", "make_recall_prompt"]


@dataclass(frozen=True)
class RecallPair:
    """Where a built pair lies. `target` and `draft` are model folders; `vocab` is shared."""

    target: Path
    draft: Path
    vocab: int


def build_recall_pair(
    out: Path,
    *,
    seed: int = 0,
    vocab: int = 512,
    dtype: str = "float32",
    max_position_embeddings: int = 32768,
    draft_max_position_embeddings: int = 32768,
    pad_layers: int = 0,
) -> RecallPair:
    """Write `out/target` and `out/draft`; equal arguments give byte-identical folders.

    Args:
        out: folder to write into, created if missing.
        seed: chooses and orders the token codes.
        vocab: tokens of both models, 259..4096.
        dtype: `float32` or `bfloat16`, of the stored weights and in the configuration.
        max_position_embeddings: the target's, in tokens.
        draft_max_position_embeddings: the draft's, in tokens.
        pad_layers: layers of zero weights between the target's two, to give a verification step
            and a draft step a realistic cost ratio.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not BYTE_VOCAB <= vocab <= CODE_SIZE:
        raise ValueError(f"vocab is in {BYTE_VOCAB}..{CODE_SIZE}; got {vocab}")
    if pad_layers < 0:
        raise ValueError(f"pad_layers is at least 0; got {pad_layers}")
    stored = torch_dtype(dtype)
    codes = golay_codes(vocab, seed)
    check_separation(codes)
    layers = 2 + pad_layers
    target = write_checkpoint(
        out / "target",
        config=_config("LlamaForCausalLM", vocab, layers, max_position_embeddings, dtype),
        weights=target_weights(codes, layers),
        dtype=stored,
        vocab=vocab,
    )
    draft_config = _config(
        "LlamaForCausalLMEagle3", vocab, 1, draft_max_position_embeddings, dtype
    ) | {
        "draft_vocab_size": vocab,
        # The embedding, the state after layer 0, and the last state, which the draft ignores.
        "eagle_aux_hidden_state_layer_ids": [0, 1, layers],
    }
    draft = write_checkpoint(
        out / "draft",
        config=draft_config,
        weights=draft_weights(codes),
        dtype=stored,
        vocab=vocab,
    )
    return RecallPair(target=target, draft=draft, vocab=vocab)


def _config(
    architecture: str, vocab: int, layers: int, max_positions: int, dtype: str
) -> dict[str, Any]:
    return llama_config(
        architecture,
        hidden=HIDDEN,
        intermediate=INTERMEDIATE,
        layers=layers,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab=vocab,
        max_positions=max_positions,
        rope_theta=ROPE_THETA,
        rms_eps=RMS_EPS,
        dtype=dtype,
    )


def main(argv: list[str] | None = None) -> None:
    """Build a pair from the command line and print its two folders."""
    parser = argparse.ArgumentParser(
        prog="python -m diffspec.testbed.recall_pair", description="Write a recall pair to OUT."
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--max-pos", type=int, default=32768)
    parser.add_argument("--draft-max-pos", type=int, default=32768)
    parser.add_argument("--pad-layers", type=int, default=0)
    args = parser.parse_args(argv)
    pair = build_recall_pair(
        args.out,
        seed=args.seed,
        vocab=args.vocab,
        dtype=args.dtype,
        max_position_embeddings=args.max_pos,
        draft_max_position_embeddings=args.draft_max_pos,
        pad_layers=args.pad_layers,
    )
    print(pair.target, pair.draft, sep="\n")


if __name__ == "__main__":
    main()
