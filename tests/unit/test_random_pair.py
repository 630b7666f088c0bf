# SPDX-License-Identifier: Apache-2.0
"""The random pair: determinism, shapes, and output that is fit for identity tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from diffspec.testbed.random_pair import RandomPair, build_random_pair

SMALL = {"layers": 3, "hidden": 64, "heads": 2, "kv_heads": 1}


def test_equal_arguments_give_equal_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        build_random_pair(tmp_path / name, seed=seed, draft_vocab=100, **SMALL)
    for model in ("target", "draft"):
        a, b, c = ((tmp_path / n / model / "model.safetensors").read_bytes() for n in "abc")
        assert a == b
        assert a != c


def test_default_draft_fits_its_target(random_pair: RandomPair) -> None:
    target = json.loads((random_pair.target / "config.json").read_text())
    draft = json.loads((random_pair.draft / "config.json").read_text())
    weights = load_file(random_pair.draft / "model.safetensors")
    assert draft["hidden_size"] == target["hidden_size"] == 128
    assert draft["num_hidden_layers"] == 1
    assert draft["draft_vocab_size"] == target["vocab_size"] == 512
    ids = draft["eagle_aux_hidden_state_layer_ids"]
    assert len(set(ids)) == 3
    assert max(ids) < target["num_hidden_layers"]
    assert weights["fc.weight"].shape == (128, 3 * 128)
    assert weights["midlayer.self_attn.q_proj.weight"].shape == (4 * 32, 2 * 128)
    assert not {"d2t", "t2d", "embed_tokens.weight"} & weights.keys()


def test_smaller_draft_vocabulary_maps_into_the_target(tmp_path: Path) -> None:
    pair = build_random_pair(tmp_path, draft_vocab=100, dtype="bfloat16", **SMALL)
    weights = load_file(pair.draft / "model.safetensors")
    assert weights["lm_head.weight"].shape == (100, 64)
    assert weights["lm_head.weight"].dtype == torch.bfloat16
    ids = torch.arange(100) + weights["d2t"]
    assert ids.dtype == torch.int64
    assert torch.equal(ids, weights["t2d"].nonzero()[:, 0])
    assert ids.unique().numel() == 100


def test_misfit_drafts_can_be_built(tmp_path: Path) -> None:
    pair = build_random_pair(
        tmp_path, draft_layers=2, draft_hidden=96, norm_before_residual=True, **SMALL
    )
    config = json.loads((pair.draft / "config.json").read_text())
    weights = load_file(pair.draft / "model.safetensors")
    assert (config["hidden_size"], config["target_hidden_size"]) == (96, 64)
    assert config["num_hidden_layers"] == 2
    assert config["norm_before_residual"] is True
    assert weights["fc.weight"].shape == (96, 3 * 64)
    assert weights["embed_tokens.weight"].shape == (512, 96)
    assert weights["layers.1.self_attn.q_proj.weight"].shape == (64, 96)


@pytest.mark.parametrize(
    "arguments",
    [{"vocab": 100}, {"draft_vocab": 513}, {"layers": 2}, {"kv_heads": 3}, {"dtype": "fp8"}],
)
def test_arguments_out_of_range_are_refused(tmp_path: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        build_random_pair(tmp_path, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [5, 300])
def test_greedy_output_is_varied_and_free_of_ties(random_pair: RandomPair, length: int) -> None:
    model = LlamaForCausalLM.from_pretrained(random_pair.target, dtype=torch.float32)
    prompt = torch.randint(3, 512, (1, length), generator=torch.Generator().manual_seed(length))
    out = model.generate(
        prompt,
        max_new_tokens=64,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert out.sequences[0, length:].unique().numel() > 32
    top, second = torch.stack(out.scores)[:, 0].topk(2).values.unbind(dim=-1)
    assert (top - second).min() > 1e-4
    assert (top - second).median() > 0.5
