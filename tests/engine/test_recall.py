# SPDX-License-Identifier: Apache-2.0
"""DiffSpec in a real engine on the recall pair, whose right answer is known beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diffspec.testbed.recall_pair import build_recall_pair
from diffspec.testbed.recall_prompts import RecallPrompt
from tests.engine.conftest import DEPTH, TOKENS, scenario

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def truth(recall_prompts: list[RecallPrompt]) -> list[list[int]]:
    return [list(p.continuation_ids)[:TOKENS] for p in recall_prompts]


@pytest.mark.parametrize("way", ["batch", "cached", "sampled", "recent_only", "unpadded"])
def test_every_answer_is_the_passage(recall: Any, truth: list[list[int]], way: str) -> None:
    """Lossless in a mixed batch under chunked prefill, on cached prefixes, at temperature 1 (the
    pair's margins make any other token as likely as 1e-8), and with a useless draft."""
    assert recall[way]["tokens"] == truth
    assert recall["single"]["tokens"] == truth[-1:]


@pytest.mark.parametrize("way", ["single", "batch", "cached", "sampled", "unpadded"])
def test_retrieval_finds_the_source(recall: Any, way: str) -> None:
    assert len(recall[way]["per_position"]) == DEPTH
    assert min(recall[way]["per_position"]) >= 0.95


def test_the_newest_tokens_alone_do_not(recall: Any) -> None:
    assert recall["recent_only"]["drafts"] > 0
    assert max(recall["recent_only"]["per_position"]) <= 0.05


def test_retrieval_and_tap_were_really_used(recall: Any) -> None:
    assert recall["retrievals"] > 0
    assert recall["tap_calls"] > 0


def test_a_silenced_drafter_does_nothing(recall: Any) -> None:
    silent = recall["silent"]
    assert silent["tokens"] == silent["right"]
    assert silent["drafts"] == silent["tapped"] == 0
    assert silent["slots_held"] == 0, "who ended before is noted all the same"


def test_nothing_grows_over_fifty_requests(recall: Any) -> None:
    assert recall["turnover"]["right"] == 50
    assert recall["turnover"]["slots_held"] <= 1  # the request whose step reported the others
    resident = recall["turnover"]["resident"]
    assert resident[-1] - resident[0] < 64 << 20
    assert recall["buffers_after"] == recall["buffers"]


def test_faults_cost_drafts_and_nothing_else(recall: Any, truth: list[list[int]]) -> None:
    faults = recall["faults"]
    for way in ("drafting", "ingesting", "healed", "broken"):
        assert faults[way]["tokens"] == truth, way
    assert faults["counts"]["drafting"] >= 3
    assert faults["counts"]["ingesting verified rows"] == 1
    for way in ("drafting", "ingesting", "healed"):
        assert faults[way]["drafts"] > 0, way
        assert min(faults[way]["per_position"]) >= 0.95, way
    assert faults["gave_up"]
    assert faults["broken"]["drafts"] == 0


def test_one_session_per_drafter_and_none_after_detaching(recall: Any) -> None:
    assert "attached to this drafter already" in recall["attached_twice"]
    assert recall["left_behind"] == []


def test_bfloat16_and_small_pages(tmp_path: Path, recall_prompts: list[RecallPrompt]) -> None:
    """Another type and pages smaller than a chunk: 16 tokens against 64."""
    build_recall_pair(tmp_path, dtype="bfloat16", draft_max_position_embeddings=1024)
    found = scenario(
        "recall_plain",
        pair=str(tmp_path),
        prompts=[p.prompt_ids for p in recall_prompts],
        tokens=TOKENS,
        k=3,
        keys={"diffspec_token_budget": 768, "diffspec_chunk_size": 64},
        max_model_len=1600,
        max_num_batched_tokens=256,
        block_size=16,
        dtype="bfloat16",
    )
    assert (found["block_size"], found["dtype"]) == (16, "torch.bfloat16")
    assert found["tokens"] == [list(p.continuation_ids)[:TOKENS] for p in recall_prompts]
    assert min(found["per_position"]) >= 0.95
    assert found["faults"] == {}


def test_preempted_requests_come_back_right(preempted: Any) -> None:
    from diffspec.testbed.recall_prompts import make_recall_prompt

    assert preempted["preemptions"] > 0
    assert preempted["tokens"] == [
        list(make_recall_prompt(1000, seed=seed).continuation_ids)[:200] for seed in range(4)
    ]
    assert min(preempted["per_position"]) >= 0.95
    assert preempted["faults"] == {}
