# SPDX-License-Identifier: Apache-2.0
"""``diffspec config``: what it writes, says and returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from diffspec import schemas
from diffspec.cli.main import app
from diffspec.configuration.check import check
from diffspec.keys import BY_KEY
from diffspec.settings import DiffSpecSettings

from .doctor_models import cache_model

SHAPE = {"hidden_size": 64, "vocab_size": 100, "max_position_embeddings": 8192}
DRAFT = {
    **SHAPE,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "max_position_embeddings": 2048,
}


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["config", *map(str, arguments)])


def model(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> list[str | Path]:
    """The arguments that name a target and a draft that fit, and a file to write."""
    target = model(tmp_path / "target", {**SHAPE, "num_hidden_layers": 4})
    draft = model(tmp_path / "draft", DRAFT)
    return ["--target", target, "--draft", draft, "--out", tmp_path / "diffspec.json"]


def written(pair: list[str | Path]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(pair[-1]).read_text(encoding="utf-8"))
    return document


def test_init_writes_a_valid_file_and_says_why(pair: list[str | Path]) -> None:
    ran = run("init", *pair, "--host", "vllm-cpu")
    assert ran.exit_code == 0, ran.output
    document = written(pair)
    assert document == {
        "launch_options": {
            "speculative_config": {
                "method": "eagle3",
                "model": str(pair[3]),
                "num_speculative_tokens": 3,
                "draft_context_policy": "diffspec",
                "diffspec_token_budget": 2048,
                "diffspec_chunk_size": 64,
                "diffspec_retrieval_interval": 4,
            }
        },
        "host_version": "0.28.0rc1",
    }
    assert check(document).problems == ()
    for key in (*document["launch_options"]["speculative_config"], "host_version"):
        assert f"  {key} = " in ran.output
    assert "the draft was made for 2048 positions" in ran.output
    assert "cannot see vllm-cpu" in ran.output
    assert "let `diffspec doctor` check the real host" in ran.output
    steps = [line.split() for line in ran.output.partition("Next:")[2].splitlines() if line]
    assert [step[2] for step in steps[:3]] == ["configure", "check", "enable"]
    assert steps[0][-1] == str(pair[-1])
    # Not the `vllm` command, which dies beside vllm-cpu.
    server = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", str(pair[1])]
    assert steps[3] == ["vllm-hust-ext", "run", "--dry-run", "--", *server]
    assert run("validate", pair[-1]).exit_code == 0


def test_init_on_the_managers_own_host_writes_no_override(pair: list[str | Path]) -> None:
    ran = run("init", *pair, "--host", "vllm-ascend", "--tensor-parallel-size", "4", "--json")
    assert ran.exit_code == 0, ran.output
    said = json.loads(ran.output)
    assert said["document"] == written(pair)
    assert "host_version" not in said["document"]
    speculative = said["document"]["launch_options"]["speculative_config"]
    assert speculative["draft_tensor_parallel_size"] == 4
    assert [c["key"] for c in said["choices"]] == [*speculative, "host_version"]
    assert all(c["why"] for c in said["choices"])


@pytest.mark.parametrize(
    ("draft", "options", "expected"),
    [
        ({"max_position_embeddings": 1000}, [], (960, 64, 4)),
        ({"max_position_embeddings": 300}, [], (288, 32, 4)),
        ({"max_position_embeddings": 32768}, [], (2048, 64, 4)),
        ({"max_position_embeddings": None}, [], (2048, 64, 4)),
        ({"max_position_embeddings": 32768}, ["--token-budget", "8192"], (8192, 64, 4)),
        ({"max_position_embeddings": 256}, ["--num-speculative-tokens", "12"], (256, 16, 4)),
        ({"max_position_embeddings": 160}, ["--num-speculative-tokens", "12"], (160, 16, 1)),
        (
            {"max_position_embeddings": 1, "text_config": {"max_position_embeddings": 512}},
            [],
            (512, 64, 4),
        ),
    ],
)
def test_init_fits_the_draft(
    pair: list[str | Path], draft: dict[str, Any], options: list[str], expected: tuple[int, ...]
) -> None:
    model(Path(pair[3]), {**DRAFT, **draft})
    ran = run("init", *pair, *options)
    assert ran.exit_code == 0, ran.output
    config = written(pair)["launch_options"]["speculative_config"]
    names = ("diffspec_token_budget", "diffspec_chunk_size", "diffspec_retrieval_interval")
    assert tuple(config[name] for name in names) == expected
    ours = {key: value for key, value in config.items() if key in BY_KEY}
    depth = config["num_speculative_tokens"]
    assert DiffSpecSettings.parse(ours, num_speculative_tokens=depth).token_budget == expected[0]


@pytest.mark.parametrize(
    ("draft", "options", "expected"),
    [
        ({"max_position_embeddings": 64}, [], "the draft's trained window is 64"),
        ({"vocab_size": 90}, [], "vocab_size = 90 but the target 100"),
        ({"num_hidden_layers": 4}, [], "use a one-layer EAGLE-3 draft"),
        ({"target_hidden_size": 32}, [], "features of width 32"),
        ({"num_attention_heads": 32, "num_key_value_heads": 3}, [], "num_key_value_heads = 3"),
        ({"sliding_window": 512}, [], "sliding_window = 512"),
        ({"kv_lora_rank": 64}, [], "the draft uses multi-head latent attention"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1]}}, [], "the draft uses M-RoPE"),
        ({"architectures": ["MysteryForCausalLM"]}, [], "no draft class Eagle3MysteryForCausalLM"),
        ({"speculators_model_type": "peagle"}, [], "was trained for parallel drafting"),
        ({"transformer_layer_config": {"vocab_size": 90}}, [], "vocab_size = 90"),
        ({}, ["--token-budget", "1000"], "a multiple of diffspec_chunk_size (64)"),
        (
            {},
            ["--token-budget", "128", "--num-speculative-tokens", "30"],
            "at least 576 with diffspec_chunk_size 64",
        ),
        ({}, ["--num-speculative-tokens", "1000"], "no budget fits: at least"),
        ({}, ["--token-budget", "4096"], "at most 2048: the draft's trained window is 2048"),
        ({}, ["--host", "windows"], "must be auto or one of vllm-ascend, "),
    ],
)
def test_init_refuses_and_writes_nothing(
    pair: list[str | Path], draft: dict[str, Any], options: list[str], expected: str
) -> None:
    model(Path(pair[3]), {**DRAFT, **draft})
    ran = run("init", *pair, *options)
    assert ran.exit_code == 2
    assert expected in ran.output
    assert not Path(pair[-1]).exists()
    as_json = run("init", *pair, *options, "--json")
    assert as_json.exit_code == 2
    assert expected in json.loads(as_json.output)["problems"][0]


@pytest.mark.parametrize(
    ("target", "host", "refused", "noted"),
    [
        ({"kv_lora_rank": 64}, "vllm-ascend", "the target uses multi-head latent", None),
        ({"layer_types": ["sliding_attention"] * 4}, "vllm", "no full-attention layer", None),
        ({"full_attention_interval": 4}, "vllm", "the target is a hybrid model", None),
        ({"full_attention_interval": 4}, "vllm-ascend", None, None),
        ({"vision_config": {}}, "vllm-ascend", None, "--language-model-only"),
    ],
)
def test_init_judges_the_target_for_its_host(
    pair: list[str | Path], target: dict[str, Any], host: str, refused: str | None, noted: str
) -> None:
    model(Path(pair[1]), {**SHAPE, "num_hidden_layers": 4, **target})
    ran = run("init", *pair, "--host", host, "--json")
    said = json.loads(ran.output)
    if refused is not None:
        assert ran.exit_code == 2
        assert refused in said["problems"][0]
        return
    assert ran.exit_code == 0
    assert len(said["notes"]) == (noted is not None)
    assert noted is None or noted in said["notes"][0]


def test_init_finds_cached_hub_names(
    pair: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    cache_model(tmp_path / "hub", "org/draft", {**DRAFT, "max_position_embeddings": 1000})
    ran = run("init", *pair[:2], "--draft", "org/draft", *pair[4:])
    assert ran.exit_code == 0, ran.output
    config = written(pair)["launch_options"]["speculative_config"]
    assert (config["model"], config["diffspec_token_budget"]) == ("org/draft", 960)
    ran = run("init", *pair[:2], "--draft", "org/other", *pair[4:])
    assert ran.exit_code == 2
    assert "org/other: not on this machine" in ran.output


def test_init_overwrites_only_when_told(pair: list[str | Path]) -> None:
    out = Path(pair[-1])
    out.write_text("mine", encoding="utf-8")
    ran = run("init", *pair)
    assert ran.exit_code == 2
    assert "exists already; --force overwrites it" in ran.output
    assert out.read_text(encoding="utf-8") == "mine"
    assert run("init", *pair, "--force").exit_code == 0
    assert "launch_options" in written(pair)


def test_init_names_a_folder_that_is_not_there(pair: list[str | Path], tmp_path: Path) -> None:
    ran = run("init", *pair[:2], "--draft", tmp_path / "absent", *pair[4:])
    assert ran.exit_code == 2
    assert "absent: no such folder" in ran.output
    ran = run("init", *pair[:4], "--out", tmp_path / "no" / "diffspec.json")
    assert ran.exit_code == 2
    assert "No such file or directory" in ran.output


def test_validate_shows_each_problem_and_counts(tmp_path: Path) -> None:
    file = tmp_path / "diffspec.json"
    file.write_text('{"speculative_config": {"diffspec_chunk_size": 48}}', encoding="utf-8")
    ran = run("validate", file)
    assert ran.exit_code == 2
    first, second, *_, last = ran.output.splitlines()
    assert first.startswith("error: speculative_config: belongs inside launch_options")
    assert second.startswith("error: diffspec_chunk_size = 48")
    assert last == f"{file}: 2 problems"
    said = json.loads(run("validate", file, "--json").output)
    assert said["ok"] is False
    assert len(said["problems"]) == 2


def test_validate_shows_warnings(tmp_path: Path) -> None:
    file = tmp_path / "diffspec.json"
    file.write_text('{"launch_options": {"speculative_config": {}}}', encoding="utf-8")
    ran = run("validate", file)
    assert ran.exit_code == 0
    assert ran.output.startswith('warning: draft_context_policy is not "diffspec"')
    assert len(json.loads(run("validate", file, "--json").output)["warnings"]) == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"launch_options": {"speculative_config": {"a": 1,}}}', "line 1, column 51"),
        (b'{"a": "\xff"}', "not UTF-8 (byte 7)"),
        (None, "No such file or directory"),
    ],
)
def test_validate_says_why_a_file_cannot_be_read(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    file = tmp_path / "diffspec.json"
    if content is not None:
        file.write_bytes(content)
    ran = run("validate", file)
    assert ran.exit_code == 2
    assert expected in ran.output
    assert ran.output.endswith(f"{file}: 1 problem\n")
    assert expected in json.loads(run("validate", file, "--json").output)["problems"][0]


def test_explain_lists_every_key() -> None:
    ran = run("explain")
    assert ran.exit_code == 0
    for key in (*BY_KEY, "num_speculative_tokens", "launch_options", "host_version"):
        assert f" {key} " in ran.output
    said = json.loads(run("explain", "--json").output)
    assert [item["key"] for item in said if item["ours"]] == list(BY_KEY)


@pytest.mark.parametrize("key", BY_KEY)
def test_explain_one_key_in_full(key: str) -> None:
    rule = schemas.load("diffspec")["$defs"][key]
    ran = run("explain", key.replace("_", "-"))
    assert ran.exit_code == 0
    words = " ".join(ran.output.split())
    assert rule["description"] in words
    assert f"default {json.dumps(rule['default'])}" in words
    assert "inside launch_options.speculative_config" in words
    (said,) = json.loads(run("explain", key, "--json").output)
    assert said["detail"] == rule["description"]


def test_explain_an_unknown_key_suggests() -> None:
    ran = run("explain", "diffspec_bugdet")
    assert ran.exit_code == 2
    assert "no key diffspec_bugdet; did you mean diffspec_token_budget?" in ran.output
    assert "known: draft_context_policy, " in run("explain", "zzzz").output


def test_schema_is_printed_for_an_editor() -> None:
    assert json.loads(run("schema").output) == schemas.load("diffspec")
