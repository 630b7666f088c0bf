# SPDX-License-Identifier: Apache-2.0
"""The recall pair, checked with transformers' Llama and a dense draft written here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from diffspec.testbed._golay import golay_codes
from diffspec.testbed.recall_pair import RecallPair, build_recall_pair, main
from diffspec.testbed.recall_prompts import NGRAM, make_recall_prompt

PROMPT = make_recall_prompt(900, seed=3)
STEPS = 24


@pytest.mark.parametrize("seed", [0, 7])
def test_golay_codes_are_distinct_and_far_apart(seed: int) -> None:
    codes = golay_codes(4096, seed)
    assert codes.shape == (4096, 24)
    assert set(codes.unique().tolist()) == {-1.0, 1.0}
    distance = (24 - codes @ codes.T) / 2
    # The weight distribution of the extended Golay code: 0, 8, 12, 16, 24 and nothing else.
    values, counts = distance[0].long().unique(return_counts=True)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == {
        0: 1,
        8: 759,
        12: 2576,
        16: 759,
        24: 1,
    }
    distance.fill_diagonal_(24)
    assert distance.min() == 8


def test_golay_codes_refuse_more_words_than_there_are() -> None:
    with pytest.raises(ValueError, match="4096"):
        golay_codes(4097, 0)


def test_equal_arguments_give_equal_bytes(tmp_path: Path) -> None:
    arguments = {"seed": 5, "vocab": 300, "dtype": "bfloat16", "pad_layers": 1}
    for name in ("a", "b"):
        build_recall_pair(tmp_path / name, **arguments)
    build_recall_pair(tmp_path / "c", **arguments | {"seed": 6})
    files = [p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert len(files) == 8
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    weights = Path("target/model.safetensors")
    assert (tmp_path / "a" / weights).read_bytes() != (tmp_path / "c" / weights).read_bytes()


def test_configuration_carries_the_arguments(tmp_path: Path) -> None:
    flags = "--vocab 600 --dtype bfloat16 --max-pos 9000 --draft-max-pos 2048 --pad-layers 3"
    main([str(tmp_path), *flags.split()])
    target = json.loads((tmp_path / "target/config.json").read_text())
    draft = json.loads((tmp_path / "draft/config.json").read_text())
    assert target["architectures"] == ["LlamaForCausalLM"]
    assert (target["num_hidden_layers"], target["max_position_embeddings"]) == (5, 9000)
    assert draft["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (draft["num_hidden_layers"], draft["max_position_embeddings"]) == (1, 2048)
    assert draft["eagle_aux_hidden_state_layer_ids"] == [0, 1, 5]
    for config in (target, draft):
        assert (config["vocab_size"], config["torch_dtype"]) == (600, "bfloat16")
    weights = load_file(tmp_path / "target/model.safetensors")
    assert weights["lm_head.weight"].shape[0] == 600
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "arguments", [{"vocab": 100}, {"vocab": 5000}, {"pad_layers": -1}, {"dtype": "int8"}]
)
def test_arguments_out_of_range_are_refused(tmp_path: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        build_recall_pair(tmp_path, **arguments)  # type: ignore[arg-type]


def test_tokenizer_keeps_prompts_through_text(recall_pair: RecallPair) -> None:
    tokenizer = Tokenizer.from_file(str(recall_pair.target / "tokenizer.json"))
    ids = PROMPT.prompt_ids[1:]
    assert tokenizer.encode(tokenizer.decode(ids)).ids == ids
    assert tokenizer.encode("naïve <x000>").ids[-1] == 259
    assert tokenizer.get_vocab_size() == recall_pair.vocab


@pytest.fixture(scope="module")
def teacher_forced(recall_pair: RecallPair) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Target logits and the state after layer 0 over a prompt and its true continuation."""
    model = LlamaForCausalLM.from_pretrained(recall_pair.target, dtype=torch.float32)
    ids = PROMPT.prompt_ids + PROMPT.continuation_ids[:STEPS]
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    return out.logits[0], torch.stack(out.hidden_states[:2])[:, 0], ids


def test_target_recites(teacher_forced: tuple[torch.Tensor, torch.Tensor, list[int]]) -> None:
    logits, _, _ = teacher_forced
    answers = logits[len(PROMPT.prompt_ids) - 1 : -1]
    assert answers.argmax(dim=-1).tolist() == PROMPT.continuation_ids[:STEPS]
    top, second = answers.topk(2).values.unbind(dim=-1)
    assert (top - second).min() > 15


def _rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding as complex multiplication, in float64; `x` is `[heads, n, dim]`."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    z = z * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], dim=-1).float()


class DenseDraft:
    """EAGLE-3's one layer over a whole context, with a mask over the slots it may see."""

    def __init__(self, folder: Path) -> None:
        self.w = load_file(folder / "model.safetensors")
        self.config = json.loads((folder / "config.json").read_text())

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        eps = self.config["rms_norm_eps"]
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)

    def project(self, name: str, embedding: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.norm(embedding), self.norm(feature)], dim=-1)
        y = x @ self.w[f"midlayer.self_attn.{name}_proj.weight"].T
        return y.unflatten(-1, (-1, self.config["head_dim"])).transpose(0, 1)

    def draft(
        self,
        table: torch.Tensor,
        aux: torch.Tensor,
        ids: list[int],
        visible: torch.Tensor,
        depth: int,
    ) -> list[int]:
        """Draft `depth` tokens after `ids`; `aux` is `[len(ids) - 1, 3 * hidden]`."""
        theta, dim = self.config["rope_theta"], self.config["head_dim"]
        feature, embedding = aux @ self.w["fc.weight"].T, table[torch.tensor(ids[1:])]
        visible, drafted = visible.clone(), []
        for _ in range(depth):
            positions = torch.arange(len(feature), dtype=torch.float64)
            q = _rotate(self.project("q", embedding, feature)[:, -1:], positions[-1:], theta)
            k = _rotate(self.project("k", embedding, feature), positions, theta)
            v = self.project("v", embedding, feature)
            k, v = (t.repeat_interleave(len(q) // len(k), dim=0) for t in (k, v))
            scores = (q @ k.transpose(1, 2)) / dim**0.5
            weight = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
            attended = (weight @ v)[:, 0].flatten()
            state = feature[-1] + attended @ self.w["midlayer.self_attn.o_proj.weight"].T
            drafted.append(int((self.norm(state) @ self.w["lm_head.weight"].T).argmax()))
            feature = torch.cat([feature, state[None]])
            embedding = torch.cat([embedding, table[drafted[-1:]]])
            visible = torch.cat([visible, torch.tensor([True])])
        return drafted


@pytest.mark.parametrize("source_visible", [True, False])
def test_draft_is_right_where_it_sees_the_source(
    recall_pair: RecallPair,
    teacher_forced: tuple[torch.Tensor, torch.Tensor, list[int]],
    source_visible: bool,
) -> None:
    """A sink, the newest slots and, or not, the passage: the working cache of a draft."""
    _, states, ids = teacher_forced
    # The third auxiliary state holds the target's prediction. The draft must not need it.
    aux = torch.cat([states[0], states[1], torch.randn(states[1].shape)], dim=-1)
    draft = DenseDraft(recall_pair.draft)
    table = load_file(recall_pair.target / "model.safetensors")["model.embed_tokens.weight"]
    end, depth = len(PROMPT.prompt_ids) + 4, 5
    visible = torch.zeros(end - 1, dtype=torch.bool)
    visible[:16], visible[-32:] = True, True
    if source_visible:
        visible[PROMPT.source_start : PROMPT.source_start + 48] = True
    drafted = draft.draft(table, aux[: end - 1], ids[:end], visible, depth)
    correct = sum(
        a == b for a, b in zip(drafted, PROMPT.continuation_ids[4 : 4 + depth], strict=True)
    )
    assert correct == (depth if source_visible else 0)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(64, 1500),
    seed=st.integers(0, 2**32),
    at=st.floats(0, 0.7),
    cue=st.integers(4, 12),
    topic=st.sampled_from([0, 1, 3, 16]),
)
def test_prompt_names_its_continuation(
    length: int, seed: int, at: float, cue: int, topic: int
) -> None:
    prompt = make_recall_prompt(length, seed=seed, at=at, cue=cue, topic=topic, segment=64)
    ids = prompt.prompt_ids
    assert len(ids) == length
    document = ids[1:-cue]
    grams = [tuple(document[i : i + NGRAM]) for i in range(len(document) - NGRAM + 1)]
    assert len(set(grams)) == len(grams)
    source = prompt.source_start
    assert ids[source : source + cue] == ids[-cue:]
    assert prompt.continuation_ids == ids[source + cue : -cue]
    assert prompt == make_recall_prompt(length, seed=seed, at=at, cue=cue, topic=topic, segment=64)


def test_topic_narrows_a_segment() -> None:
    document = make_recall_prompt(1200, topic=16, segment=256).prompt_ids[1:]
    assert len(set(document[:256])) == 16
    assert len(set(document[:1024])) > 40


@pytest.mark.parametrize(
    ("length", "arguments"),
    [
        (100, {"cue": 3}),
        (100, {"at": 1.0}),
        (100, {"vocab": 10}),
        (100, {"topic": -1}),
        (100, {"segment": 0}),
        (20, {"at": 0.9}),
    ],
)
def test_prompt_arguments_out_of_range_are_refused(
    length: int, arguments: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match="length" if length == 20 else next(iter(arguments))):
        make_recall_prompt(length, **arguments)  # type: ignore[arg-type]
