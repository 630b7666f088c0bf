# SPDX-License-Identifier: Apache-2.0
"""The doctor on a target and a draft, from configurations and headers alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diffspec.configuration.checkpoint import load
from diffspec.configuration.draft_class import ARCHITECTURES
from diffspec.configuration.pair_facts import pair_facts
from diffspec.doctor import pair, tensors
from diffspec.doctor.diagnose import Question, diagnose
from diffspec.hosts.launch import LaunchFacts

from .doctor_judge import Judge, judge_pair, pair_findings, wrong
from .doctor_models import (
    DRAFT,
    EAGLE3_27B,
    EAGLE3_QWEN3,
    LLAMA,
    QWEN35_27B,
    write_draft,
    write_model,
)
from .doctor_python import install, surroundings


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return partial(judge_pair, tmp_path)


# -- the lane that was qualified --


@pytest.mark.parametrize("flat", [False, True])
def test_the_qualified_pair_fits(tmp_path: Path, flat: bool) -> None:
    target = QWEN35_27B
    if flat:
        target = {**QWEN35_27B["text_config"], "architectures": ["Qwen3_5ForCausalLM"]}
    write_model(tmp_path / "t", target)
    write_draft(tmp_path / "d", EAGLE3_27B)
    found = pair_findings(tmp_path, "ascend")
    assert wrong(found) == []
    (fits,) = [f for f in found if f.id == "pair.fits"]
    assert fits.what == (
        "d fits t: LlamaForCausalLMEagle3, one layer, hidden size 5120 on 5120, vocabulary "
        "248320, of which the draft proposes 32000"
    )
    (window,) = [f for f in found if f.id == "pair.window"]
    assert "made for 4096 positions and attends to at most 2048 tokens" in window.what
    assert "the server serves 262144 (max_model_len)" in window.what
    # Text alone was qualified, with M-RoPE off; a configuration says whether it has more.
    more = [] if flat else ["pair.multimodal"]
    assert [f.id for f in wrong(found, "warning")] == ["pair.target_mrope", *more]


@pytest.mark.parametrize("name", EAGLE3_QWEN3)
def test_drafts_for_qwen3_are_rejected_with_both_numbers(tmp_path: Path, name: str) -> None:
    write_model(tmp_path / "t", QWEN35_27B)
    write_draft(tmp_path / "d", EAGLE3_QWEN3[name])
    found = {f.id: f for f in wrong(pair_findings(tmp_path, "ascend"))}
    assert set(found) == {"pair.draft_vocabulary", "pair.draft_hidden_size"}
    vocabulary = found["pair.draft_vocabulary"]
    assert vocabulary.what == "the draft has vocab_size = 151936 but the target 248320"
    assert vocabulary.fix == "use this target's draft"
    hidden = EAGLE3_QWEN3[name]["hidden_size"]
    assert f"features of width {hidden} " in found["pair.draft_hidden_size"].what
    assert "hidden_size is 5120" in found["pair.draft_hidden_size"].what


def test_on_vllms_own_hosts_the_same_target_is_refused_as_hybrid(tmp_path: Path) -> None:
    write_model(tmp_path / "t", QWEN35_27B)
    write_draft(tmp_path / "d", EAGLE3_27B)
    assert [f.id for f in wrong(pair_findings(tmp_path, "cpu"))] == ["pair.hybrid_target"]


# -- rows of the one list of refusals --


def test_a_plain_pair_fits_and_the_numbers_are_named(judge: Judge) -> None:
    found = judge()
    assert {f.level for f in found} == {"ok"}
    assert [f.id for f in found] == ["pair.window", "pair.fits"]


def test_a_pair_is_judged_together_with_the_machine_it_is_for(tmp_path: Path) -> None:
    """Not for another platform, as the other tests here do."""
    install(tmp_path / "site", "vllm", "0.28.0+cpu")
    write_model(tmp_path / "t", LLAMA)
    write_draft(tmp_path / "d", DRAFT)
    question = Question(target=tmp_path / "t", draft=tmp_path / "d")
    found = diagnose(question, surroundings(tmp_path)).findings
    assert [f.id for f in found][-2:] == ["pair.window", "pair.fits"]
    assert {"host", "plugins", "manager", "pair"} == {f.area for f in found}


@pytest.mark.parametrize("alone", ["target", "draft"])
def test_one_of_the_two_is_judged_by_itself(tmp_path: Path, alone: str) -> None:
    write_model(tmp_path / "t", LLAMA | {"kv_lora_rank": 512, "vision_config": {}})
    write_draft(tmp_path / "d", DRAFT | {"num_hidden_layers": 2, "max_position_embeddings": 64})
    folders = {"target": tmp_path / "t", "draft": tmp_path / "d"}
    question = Question(**{alone: folders[alone]}, platform="cpu")
    found = [f for f in diagnose(question, surroundings(tmp_path)).findings if f.area == "pair"]
    ids = {
        "target": ["pair.target_mla"],
        "draft": ["pair.draft_layers", "pair.window"],
    }
    assert [f.id for f in wrong(found)] == ids[alone]
    assert not [f for f in found if f.id == "pair.fits"]


@pytest.mark.parametrize(
    ("id", "target", "draft", "part"),
    [
        ("draft_layers", {}, {"num_hidden_layers": 2}, "num_hidden_layers = 2"),
        ("draft_heads", {}, {"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ("draft_heads", {}, {"head_dim": 63}, "a head size of 63"),
        ("draft_mla", {}, {"kv_lora_rank": 512}, "the draft uses multi-head latent attention"),
        ("draft_sliding_window", {}, {"sliding_window": 512}, "sliding_window = 512"),
        (
            "draft_mrope",
            {},
            {"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}},
            "the draft uses M-RoPE",
        ),
        ("draft_rope", {}, {"rope_scaling": {"rope_type": "dynamic"}}, 'rope_type = "dynamic"'),
        ("target_mla", {"kv_lora_rank": 512}, {}, "the target uses multi-head latent attention"),
        ("hybrid_target", {"layer_types": ["mamba", "attention"]}, {}, "a hybrid model"),
        ("hybrid_target", {"full_attention_interval": 4}, {}, "a hybrid model"),
        (
            "no_full_attention",
            {"layer_types": ["sliding_attention"] * 16},
            {},
            "the target has no full-attention layer",
        ),
    ],
)
def test_rows_are_judged_from_the_configurations(
    judge: Judge, id: str, target: dict[str, Any], draft: dict[str, Any], part: str
) -> None:
    found = {f.id: f for f in wrong(judge(target, draft, changes=_any_shapes()))}
    assert part in found[f"pair.{id}"].what
    assert found[f"pair.{id}"].fix


def _any_shapes() -> dict[str, None]:
    """A file without the tensors whose shapes follow from the configuration."""
    names = ("q", "k", "v", "o")
    return {f"midlayer.self_attn.{n}_proj.weight": None for n in names}


@pytest.mark.parametrize(
    "draft",
    [
        {"sliding_window": 512, "use_sliding_window": False},
        {"sliding_window": 512, "model_type": "qwen3"},
        {"sliding_window": 512, "layer_types": ["full_attention"]},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
    ],
)
def test_windows_that_are_off_and_plain_rope_are_accepted(
    judge: Judge, draft: dict[str, Any]
) -> None:
    assert wrong(judge(draft=draft)) == []


def test_a_multimodal_target_needs_a_flag_that_is_not_known_here(judge: Judge) -> None:
    (finding,) = wrong(judge({"vision_config": {"depth": 2}}), "warning")
    assert finding.id == "pair.multimodal"
    assert finding.fix == "serve it with --language-model-only"


def test_m_rope_in_the_target(judge: Judge) -> None:
    rope = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2]}}
    (finding,) = [f for f in judge(rope) if f.id == "pair.target_mrope"]
    assert (finding.level, finding.fix) == ("ok", "")
    assert "for text its three positions are equal" in finding.what
    (finding,) = wrong(judge(rope, platform="ascend"), "warning")
    assert finding.id == "pair.target_mrope"
    assert "the lane's record has M-RoPE among what is to be off" in finding.fix


# -- classes --


@pytest.mark.parametrize(
    ("draft", "part"),
    [
        ({"architectures": ["MysteryForCausalLM"]}, "no draft class Eagle3MysteryForCausalLM"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "lacks parts that DiffSpec calls"),
        ({"architectures": ["PEagleDraftModel"]}, "was trained for parallel drafting"),
        ({"architectures": None}, "names no architectures"),
    ],
)
def test_draft_classes_that_cannot_run(judge: Judge, draft: dict[str, Any], part: str) -> None:
    (finding,) = wrong(judge(draft=draft))
    assert finding.id == "pair.architecture"
    assert part in finding.what
    assert "LlamaForCausalLMEagle3" in finding.fix


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_vllm_puts_eagle3_before_a_plain_name(judge: Judge, name: str) -> None:
    assert wrong(judge(draft={"architectures": [name]})) == []


def test_the_table_of_draft_classes_is_the_installed_hosts() -> None:
    vllm = pytest.importorskip("vllm")
    registry = (Path(vllm.__file__).parent / pair._REGISTRY).read_text(encoding="utf-8")
    for name, cls in ARCHITECTURES.items():
        assert tensors.registered(registry, name) == (
            {
                "Eagle3LlamaForCausalLM": "llama_eagle3",
                "Eagle3Qwen3ForCausalLM": "qwen3_eagle3",
                "Eagle3DeepseekV2ForCausalLM": "deepseek_eagle3",
            }[cls],
            cls,
        )
    assert tensors.registered(registry, "NoSuchModel") is None


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("LlamaForCausalLM", None),
        ("Qwen3_5ForConditionalGeneration", None),
        ("MambaForCausalLM", "error"),
        ("NoSuchModel", "warning"),
    ],
)
def test_the_targets_class_must_hand_out_intermediate_states(
    tmp_path: Path, name: str, id: str | None
) -> None:
    """Judged by the installed vLLM's source."""
    vllm = pytest.importorskip("vllm")
    from diffspec.hosts.source import HostSource

    source = HostSource(Path(vllm.__file__).parent)
    target = load(write_model(tmp_path / "t", LLAMA | {"architectures": [name]}))
    draft = load(write_draft(tmp_path / "d", DRAFT))
    found = pair.judge(target, draft, "cpu", source).findings
    told = [f.level for f in found if f.id == "pair.target_class"]
    assert told == ([] if id is None else [id])


def test_a_target_in_speculators_format_brings_its_own_configuration(judge: Judge) -> None:
    found = wrong(judge({"speculators_model_type": "eagle3"}))
    assert "speculators format" in found[0].what
    assert found[0].fix == "name target and draft separately"


def test_a_draft_in_speculators_format_is_read_from_its_layer(tmp_path: Path) -> None:
    layer = {k: v for k, v in DRAFT.items() if k not in ("architectures", "draft_vocab_size")}
    config = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 1024,
        "transformer_layer_config": layer,
    }
    write_model(tmp_path / "t", LLAMA)
    write_draft(tmp_path / "d", DRAFT)
    (tmp_path / "d" / "config.json").write_text(json.dumps(config))
    assert wrong(pair_findings(tmp_path, "cpu")) == []


# -- types, quantisation, tokens, lengths --


def test_types_that_differ_are_converted_by_the_host(judge: Judge) -> None:
    (finding,) = [f for f in judge(draft={"torch_dtype": "float16"}) if f.id == "pair.dtype"]
    assert finding.level == "ok"
    assert "stored in float16, the target in bfloat16" in finding.what


def test_packed_projections(judge: Judge) -> None:
    name = "midlayer.self_attn.q_proj.weight"
    (finding,) = wrong(judge(changes={name: ("I8", (512, 1024))}), "warning")
    assert finding.what == "the draft's projections are stored as I8"


@pytest.mark.parametrize("role", ["target", "draft"])
def test_quantised_weights(judge: Judge, role: str) -> None:
    change = {role: {"quantization_config": {"quant_method": "fp8"}}}
    (finding,) = wrong(judge(**change), "warning")
    assert finding.what == f"the {role} is quantised (fp8), which nobody has tried"
    assert finding in wrong(judge(**change, platform="ascend"), "warning")


def test_quantisation_in_modelopts_own_file(tmp_path: Path) -> None:
    judge_pair(tmp_path)
    (tmp_path / "d" / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    (finding,) = wrong(pair_findings(tmp_path, "cpu"), "warning")
    assert finding.what == "the draft is quantised (modelopt), which nobody has tried"


def test_end_tokens_that_differ(judge: Judge) -> None:
    (finding,) = wrong(judge({"eos_token_id": [1, 2]}, {"eos_token_id": 3}), "warning")
    assert "eos_token_id [3] is not among the target's [1, 2]" in finding.what
    assert wrong(judge({"eos_token_id": [1, 2]}, {"eos_token_id": 2}), "warning") == []


def test_an_unknown_or_short_trained_window(judge: Judge) -> None:
    (finding,) = wrong(judge(draft={"max_position_embeddings": None, "model_type": "x"}), "warning")
    assert "is not known" in finding.what
    assert "set diffspec_token_budget" in finding.fix
    (finding,) = wrong(judge(draft={"max_position_embeddings": 64}))
    assert finding.id == "pair.window"
    assert "the draft's trained window is 64" in finding.what
    assert "at most 64 is possible" in finding.what


def test_rope_that_stretches_positions_counts(judge: Judge) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    (finding,) = [f for f in judge(draft={"rope_scaling": yarn}) if f.id == "pair.window"]
    assert "the draft was made for 4096 positions" in finding.what


# -- vLLM's own objects as the oracle --


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 4, "head_dim": None, "vocab_size": 640},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"eagle_config": {"use_aux_hidden_state": False}},
        {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "sliding_window": 512},
        {"model_type": "mistral", "sliding_window": 512},
    ],
    ids=str,
)
def test_facts_are_those_of_vllms_objects(
    launch_environment: None,
    launch: Callable[..., Any],
    altered_draft: Callable[..., str],
    random_pair: Any,
    changes: dict[str, Any],
) -> None:
    from diffspec.hosts.vllm.facts import draft_facts
    from diffspec.hosts.vllm.routing import trained_window

    draft = altered_draft(**changes)
    theirs = launch({"model": draft}, max_model_len=2048).speculative_config
    target, own = load(random_pair.target), load(Path(draft))
    ours, hosts = pair_facts(target, own), draft_facts(theirs)
    names = [n for n in LaunchFacts.__dataclass_fields__ if n.startswith(("draft_", "target_"))]
    names = [n for n in names if getattr(hosts, n) is not None and "tensor_parallel" not in n]
    names = [n for n in names if n not in ("draft_sample_method", "draft_rope_type")]
    assert len(names) >= 8
    assert {n: getattr(ours, n) for n in names} == {n: getattr(hosts, n) for n in names}
    # vLLM fills in "default" where the file says nothing.
    assert (ours.draft_rope_type or "default") == (hosts.draft_rope_type or "default")
    assert ours.draft_sliding_window == hosts.draft_sliding_window
    # Of a stretched length that was cut to the served one, vLLM's object keeps the plain one.
    if "rope_scaling" not in changes:
        assert pair.judge(target, own, "cpu").trained_window == trained_window(theirs)
