# SPDX-License-Identifier: Apache-2.0
"""The converted SmolLM2 and the committed draft head, as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).parents[2] / "data"
HEAD = DATA / "smollm2-135m-eagle3"

pytestmark = pytest.mark.engine


def test_model_answers(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=3, do_sample=False)
    assert tokenizer.decode(out[0, prompt.input_ids.shape[1] :]).startswith(" Paris.")


def test_chat_template_ends_with_the_assistant_turn(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_head_fits_the_model(smollm2: Path) -> None:
    target = json.loads((smollm2 / "config.json").read_text())
    head = json.loads((HEAD / "config.json").read_text())
    weights = load_file(HEAD / "model.safetensors")
    for key in ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads"):
        assert head[key] == target[key], key
    ids = torch.arange(head["draft_vocab_size"]) + weights["d2t"]
    assert torch.equal(ids, weights["t2d"].nonzero()[:, 0])
    assert weights["lm_head.weight"].shape == (head["draft_vocab_size"], head["hidden_size"])
    layers = head["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert weights["fc.weight"].shape == (head["hidden_size"], len(layers) * target["hidden_size"])
    assert max(layers) <= target["num_hidden_layers"]


def test_default_passage_is_long_for_the_head_and_short_for_the_model(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = (DATA / "passages" / "winters-tale.txt").read_text(encoding="utf-8")
    assert 1500 <= len(tokenizer(text).input_ids) <= 2500
