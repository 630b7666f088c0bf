# SPDX-License-Identifier: Apache-2.0
"""The doctor on model folders: their files, what the headers say, and how a folder is found."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diffspec.configuration.checkpoint import load, read_config
from diffspec.configuration.places import find
from diffspec.doctor.diagnose import Question, diagnose
from diffspec.doctor.findings import Finding
from diffspec.settings import ConfigError

from .doctor_judge import Judge, judge_pair, pair_findings, wrong
from .doctor_models import DRAFT, LLAMA, cache_model, write_model
from .doctor_python import surroundings


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return partial(judge_pair, tmp_path)


# -- headers --


@pytest.mark.parametrize(
    ("name", "shape", "part"),
    [
        (
            "midlayer.self_attn.q_proj.weight",
            (512, 512),
            "is 512 x 512; config.json says 512 x 1024",
        ),
        (
            "lm_head.weight",
            (4096, 512),
            "lm_head.weight is 4096 x 512; config.json says 1024 x 512",
        ),
        ("fc.weight", (256, 1536), "fc.weight is 256 x 1536; config.json says 512 x 1536"),
        (
            "fc.weight",
            (512, 1500),
            "reads 1500 features, no multiple of the target's hidden size 512",
        ),
        ("embed_tokens.weight", (4000, 512), "is 4000 x 512; config.json says 4096 x 512"),
    ],
)
def test_shapes_against_the_configuration(
    judge: Judge, name: str, shape: tuple[int, int], part: str
) -> None:
    (finding,) = wrong(judge(changes={name: ("BF16", shape)}))
    assert finding.id == "pair.shapes"
    assert part in finding.what


def test_layers_are_counted_in_the_file_too(judge: Judge) -> None:
    extra = {f"layers.{i}.mlp.up_proj.weight": ("BF16", (8, 8)) for i in (0, 1)}
    (finding,) = wrong(judge(changes=extra))
    assert finding.what == "the draft's files hold 2 layers ([0, 1])"


def test_ids_that_d2t_leads_to(judge: Judge) -> None:
    assert wrong(judge(offsets=[3072] * 1024)) == []
    (finding,) = wrong(judge(offsets=[3073] * 1024))
    assert finding.id == "pair.d2t"
    assert finding.what == (
        "d2t leads to target ids from 3073 to 4096; the vocabulary has 0 to 4095"
    )
    (finding,) = wrong(judge(offsets=[-1] + [0] * 1023))
    assert "target ids from -1 to 1023" in finding.what
    # Target ids instead of offsets: draft ids 2i all over the place, half of them shared.
    (finding,) = wrong(judge(offsets=[-i for i in range(1024)]), "warning")
    assert "1024 draft ids to 1 different target ids" in finding.what


def test_a_missing_or_short_d2t(judge: Judge) -> None:
    (finding,) = wrong(judge(changes={"d2t": None}))
    assert "proposes 1024 of 4096 tokens but has no d2t table" in finding.what
    (finding,) = wrong(judge(changes={"d2t": ("I64", (1000,))}))
    assert finding.what == "d2t has 1000 entries but draft_vocab_size is 1024"
    whole = {"draft_vocab_size": 4096}
    assert wrong(judge(draft=whole, changes={"d2t": None})) == []
    (finding,) = wrong(judge(draft={"draft_vocab_size": 5000}, changes={"d2t": None}))
    assert "draft_vocab_size = 5000, more than its vocab_size = 4096" in finding.what


@pytest.mark.parametrize(
    ("draft", "part"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [2, 8, 17]}, "the target has layers 0 to 16"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 8, 8]}}, "the same layer twice"),
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 8]},
            "fc.weight reads 3 target states but eagle_aux_hidden_state_layer_ids names 2",
        ),
    ],
)
def test_aux_layers(judge: Judge, draft: dict[str, Any], part: str) -> None:
    (finding,) = wrong(judge(draft=draft))
    assert finding.id == "pair.aux_layers"
    assert part in finding.what


def test_default_aux_layers_of_a_shallow_target(judge: Judge) -> None:
    (finding,) = wrong(judge({"num_hidden_layers": 5}))
    assert finding.what == "vLLM's default for 5 target layers = [2, 2, 2]: the same layer twice"


@pytest.mark.parametrize(
    ("lacking", "listed"),
    [
        (["fc.weight"], "fc"),
        (
            ["midlayer.self_attn.q_proj.weight", "midlayer.self_attn.o_proj.weight"],
            "q_proj, o_proj",
        ),
    ],
)
def test_parts_without_which_it_is_no_draft(judge: Judge, lacking: list[str], listed: str) -> None:
    found = judge(changes=dict.fromkeys(lacking))
    (finding,) = wrong(found)
    assert finding.what == f"the draft's files hold no {listed}, which an EAGLE-3 draft has"
    assert not [f for f in found if f.id == "pair.fits"]


def test_parts_under_other_names(judge: Judge) -> None:
    packed = {"midlayer.self_attn.q_proj.weight": None}
    packed["midlayer.self_attn.q_proj.weight_packed"] = ("I32", (512, 128))  # type: ignore[assignment]
    assert wrong(judge(changes=packed)) == []
    fused: dict[str, Any] = {f"midlayer.self_attn.{n}_proj.weight": None for n in "qkv"}
    fused["midlayer.self_attn.qkv_proj.weight"] = ("BF16", (768, 1024))
    assert wrong(judge(changes=fused)) == []
    as_it_is = {"eagle_config": {"use_aux_hidden_state": False}}
    assert wrong(judge(draft=as_it_is, changes={"fc.weight": None})) == []


# -- files --


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_folder_without_weights_is_judged_by_its_configuration(tmp_path: Path, role: str) -> None:
    judge_pair(tmp_path)
    (tmp_path / role[0] / "model.safetensors").unlink()
    found = pair_findings(tmp_path, "cpu")
    assert wrong(found) == []
    (finding,) = wrong(found, "warning")
    assert f"has no weights, no safetensors file: the {role}'s weights were not" in finding.what
    # A target's tensors are not compared with anything; a draft's are what fits.
    assert bool([f for f in found if f.id == "pair.fits"]) == (role == "target")


def test_weights_in_another_format_are_a_warning(tmp_path: Path) -> None:
    write_model(tmp_path / "t", LLAMA)
    write_model(tmp_path / "d", DRAFT, weights=False)
    (tmp_path / "d" / "pytorch_model.bin").write_bytes(b"")
    (finding,) = wrong(pair_findings(tmp_path, "cpu"), "warning")
    assert "has only pytorch_model.bin, no safetensors file" in finding.what


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_file_that_cannot_be_read_or_is_missing(tmp_path: Path, role: str) -> None:
    judge_pair(tmp_path)
    folder = tmp_path / role[0]
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(b"nonsense")
    (finding,) = wrong(pair_findings(tmp_path, "cpu"))
    assert finding.id == "pair.weights"
    assert f"the {role}'s weights cannot be loaded" in finding.what
    (folder / "model.safetensors").write_bytes(whole)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = pair_findings(tmp_path, "cpu")
    (finding,) = wrong(found)
    assert "lacks 1 of the files that model.safetensors.index.json names (model-2." in finding.what
    assert finding.fix == "download or copy the model whole"
    assert not [f for f in found if f.id == "pair.fits"]


def test_a_configuration_is_read_as_leniently_as_the_host_reads_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", LLAMA)
    text = json.dumps(LLAMA)[:-1] + ', "router_jitter": Infinity, "vocab_size": 4096}'
    (folder / "config.json").write_text(text)
    assert read_config(folder).whole("vocab_size") == 4096
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: Expecting"):
        read_config(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="must hold a JSON object"):
        read_config(folder)


# -- folders --


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        load(tmp_path / "no")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load(tmp_path / "empty")
    write_model(tmp_path / "d", DRAFT)
    question = Question(target=tmp_path / "empty", draft=tmp_path / "d", platform="cpu")
    found = diagnose(question, surroundings(tmp_path)).findings
    (finding,) = [f for f in found if f.id == "pair.target"]
    assert finding.level == "error"
    assert "the folder has no config.json" in finding.what


def test_hub_names_are_looked_up_in_the_local_cache_alone(tmp_path: Path) -> None:
    snapshot = cache_model(tmp_path / "hub", "org/draft", DRAFT)
    other = cache_model(tmp_path / "hub", "org/draft", DRAFT, ref="v2")
    home = {"HF_HOME": str(tmp_path)}
    assert find("org/draft", home).folder == snapshot
    assert find("org/draft", home, "v2").folder == other
    assert find("org/draft", home, "commit-of-v2").folder == other
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        assert find("org/draft", {name: str(tmp_path / "hub")}).folder == snapshot
    ours = cache_model(tmp_path / "huggingface" / "hub", "org/draft", DRAFT)
    assert find("org/draft", {"XDG_CACHE_HOME": str(tmp_path)}).folder == ours
    assert find("org/other", home).why == "not on this machine"
    assert find("org/draft", home, "v3").why == "not on this machine in revision v3"
    assert find(str(snapshot), {}).folder == snapshot


@pytest.mark.parametrize(
    ("name", "why", "is_wrong"),
    [
        ("s3://bucket/draft", "a remote address", False),
        ("{}/x.gguf", "a GGUF file, which vLLM 0.28 itself does not read", False),
        ("{}/x.txt", "a file, and no model folder", True),
        ("{}", "the folder has no config.json", True),
        ("{}/absent", "no such folder", True),
        ("a/b/c", "no such folder", True),
        ("~/draft", "no such folder (~ is not expanded inside JSON)", True),
        ("x" * 5000, "File name too long", True),
        ("or\0g/draft", "not on this machine", False),
        ("org/" + "x" * 250, "not on this machine", False),
    ],
)
def test_what_a_name_leads_to_if_not_to_a_folder(
    tmp_path: Path, name: str, why: str, is_wrong: bool
) -> None:
    for file in ("x.gguf", "x.txt"):
        (tmp_path / file).write_bytes(b"")
    place = find(name.format(tmp_path), {"HOME": str(tmp_path)})
    assert (place.folder, place.why, place.wrong) == (None, why, is_wrong)


def _about(tmp_path: Path, question: Question, environ: dict[str, str]) -> list[Finding]:
    found = diagnose(question, surroundings(tmp_path, environ)).findings
    return [f for f in found if f.area == "pair"]


def test_a_hub_name_is_found_wherever_it_is_given(tmp_path: Path) -> None:
    cache = {"HF_HUB_CACHE": str(tmp_path / "hub")}
    cache_model(tmp_path / "hub", "org/target", LLAMA | {"kv_lora_rank": 512}, ref="v2")
    spec = {"method": "eagle3", "num_speculative_tokens": 3, "draft_context_policy": "diffspec"}
    words = ["vllm", "serve", "org/target", "--speculative-config"]
    line = [*words, json.dumps({**spec, "model": "org/absent"})]
    found = _about(tmp_path, Question(command=line, platform="cpu"), cache)
    assert [(f.id, f.level) for f in found] == [
        ("pair.target", "warning"),  # the cache has no main branch of it
        ("pair.draft", "warning"),
    ]
    line += ["--revision", "v2"]
    found = _about(tmp_path, Question(command=line, platform="cpu"), cache)
    assert [f.id for f in wrong(found)] == ["pair.target_mla"]
    cache_model(tmp_path / "hub", "org/target", LLAMA | {"kv_lora_rank": 512})
    question = Question(target=Path("org/target"), platform="cpu")
    assert [f.id for f in wrong(_about(tmp_path, question, cache))] == ["pair.target_mla"]
    # What the doctor was asked for has to be here.
    question = Question(target=Path("org/absent"), platform="cpu")
    (finding,) = wrong(_about(tmp_path, question, cache))
    assert finding.what == "the target org/absent: not on this machine"
