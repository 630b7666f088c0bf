# SPDX-License-Identifier: Apache-2.0
"""DiffSpec in a real engine on two tensor-parallel ranks, on the recall pair."""

from __future__ import annotations

from typing import Any

import pytest

from diffspec.testbed.offline import environment, run_in_child
from diffspec.testbed.recall_prompts import RecallPrompt
from tests.engine.conftest import DEPTH, SMALL, TOKENS

pytestmark = pytest.mark.engine


def run_on_two_ranks(pair: str, prompts: list[RecallPrompt], **keys: Any) -> dict[str, Any]:
    result: dict[str, Any] = run_in_child(
        "tests.engine.scenarios:tensor_parallel",
        {
            "pair": pair,
            "prompts": [p.prompt_ids for p in prompts],
            "tokens": TOKENS,
            "k": DEPTH,
            "keys": {**SMALL, **keys},
            "max_model_len": 1600,
            "max_num_batched_tokens": 256,
            "dtype": "float32",
        },
        # By itself vLLM wants a NUMA node for each rank; a core for each, if there are two.
        env=environment(kv_gib=1, VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1"),
    )
    return result


@pytest.fixture(scope="module")
def truth(recall_prompts: list[RecallPrompt]) -> list[list[int]]:
    return [list(p.continuation_ids)[:TOKENS] for p in recall_prompts]


@pytest.fixture(scope="module")
def pinned(short_draft_pair: str, recall_prompts: list[RecallPrompt]) -> dict[str, Any]:
    return run_on_two_ranks(short_draft_pair, recall_prompts)


@pytest.mark.parametrize("way", ["batch", "one_broken", "healed"])
def test_two_ranks_recite_as_one_does(pinned: Any, truth: list[list[int]], way: str) -> None:
    assert pinned[way]["tokens"] == truth
    assert pinned[way]["drafts"] > 0
    if way != "one_broken":  # its drafts of a broken step are made with zeros from one rank
        assert pinned[way]["accepted_share"] == 1


def test_each_rank_holds_its_heads_and_retrieves_with_the_other(pinned: Any) -> None:
    leader, other = pinned["ranks"]
    assert leader["heads"] == other["heads"] == [1, 1], "one KV head of two each"
    assert leader["slots"] == other["slots"]
    assert leader["retrievals"] == other["retrievals"] > 0


def test_a_fault_on_one_rank_is_everyones(pinned: Any) -> None:
    leader, other = pinned["ranks"]
    assert other["faults"] == {"drafting": 3}
    assert leader["faults"] == {"keeping step": 3}
    assert not leader["gave_up"]


def test_adaptive_depth_on_two_ranks(
    short_draft_pair: str, recall_prompts: list[RecallPrompt], truth: list[list[int]]
) -> None:
    """How deep the policy drafts is up to this machine's clock; what is drafted is right."""
    found = run_on_two_ranks(short_draft_pair, recall_prompts, diffspec_adaptive_profile=True)
    assert found["batch"]["tokens"] == truth
    assert found["batch"]["drafts"] > 0
    assert found["batch"]["accepted_share"] == 1
    assert [rank["faults"] for rank in found["ranks"]] == [{}, {}]
