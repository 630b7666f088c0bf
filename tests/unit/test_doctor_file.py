# SPDX-License-Identifier: Apache-2.0
"""The doctor on a configuration file with no command beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffspec.doctor.diagnose import Question, diagnose
from diffspec.doctor.findings import Finding

from .doctor_judge import wrong
from .doctor_models import DRAFT, LLAMA, write_draft, write_model
from .doctor_python import surroundings, write_speculative_config

Ask = Callable[..., list[Finding]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Findings about a file; ``changes`` go over a working object, None takes a key out."""

    def run(changes: dict[str, Any], draft: dict[str, Any] | None = None, **more: Any) -> Any:
        spec = {
            "method": "eagle3",
            "model": str(write_draft(tmp_path / "d", DRAFT | (draft or {}))),
            "num_speculative_tokens": 3,
            "draft_context_policy": "diffspec",
            **changes,
        }
        spec = {key: value for key, value in spec.items() if value is not None}
        file = tmp_path / "diffspec.json"
        file.write_text(json.dumps({"launch_options": {"speculative_config": spec}}))
        question = Question(config_file=file, platform="cpu", **more)
        found = diagnose(question, surroundings(tmp_path)).findings
        return [f for f in found if f.area in ("config", "pair")]

    return run


def test_a_file_that_is_right(ask: Ask) -> None:
    found = ask({"kv_cache_dtype": "bfloat16", "num_speculative_tokens": 3.0})
    assert [(f.id, f.level) for f in found] == [("config.content", "ok"), ("pair.window", "ok")]


@pytest.mark.parametrize(
    ("changes", "part", "fix"),
    [
        ({"draft_context_policy": "full"}, "DiffSpec stays off", "set it to turn it on"),
        ({"method": None}, "vLLM needs method too", "write it here, or as a flag of the command"),
        ({"model": None}, "vLLM needs model too", "write it here, or as a flag of the command"),
    ],
)
def test_what_may_be_a_mistake_is_a_warning(
    ask: Ask, changes: dict[str, Any], part: str, fix: str
) -> None:
    found = ask(changes)
    assert wrong(found) == []
    (finding,) = wrong(found, "warning")
    assert (finding.id, finding.fix) == ("config.incomplete", fix)
    assert part in finding.what


def test_a_key_that_is_nobodys(ask: Ask, tmp_path: Path) -> None:
    write_speculative_config(tmp_path / "site")
    (finding,) = wrong(ask({"num_speculative_token": 3}))
    assert finding.id == "config.unknown_key"
    assert "num_speculative_token: neither DiffSpec nor the installed vLLM" in finding.what
    assert finding.fix == "write num_speculative_tokens"


def test_the_draft_is_judged_without_a_target(ask: Ask, tmp_path: Path) -> None:
    (finding,) = wrong(ask({"diffspec_token_budget": 4096}))
    assert "at most 2048: the draft's trained window is 2048" in finding.what
    (finding,) = wrong(ask({}, draft={"num_hidden_layers": 2}))
    assert "the draft has num_hidden_layers = 2" in finding.what
    target = write_model(tmp_path / "t", LLAMA | {"kv_lora_rank": 512})
    (finding,) = wrong(ask({"model": "org/draft"}, target=target))
    assert finding.id == "pair.target_mla"


def test_a_target_is_no_matter_of_a_launch_without_diffspec(ask: Ask, tmp_path: Path) -> None:
    target = write_model(tmp_path / "t", LLAMA | {"kv_lora_rank": 512})
    off = {"draft_context_policy": "full", "model": "org/draft"}
    assert wrong(ask(off, target=target)) == []
