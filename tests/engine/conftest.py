# SPDX-License-Identifier: Apache-2.0
"""Engines shared by the tests of this folder: each fixture is one engine start."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from diffspec.testbed.offline import environment, run_in_child
from diffspec.testbed.random_pair import RandomPair
from diffspec.testbed.recall_pair import build_recall_pair
from diffspec.testbed.recall_prompts import RecallPrompt, make_recall_prompt
from diffspec.testbed.smollm2 import smollm2_folder

DEPTH = 5
TOKENS = 64
#: Small sizes that walk the same paths as 2048 / 64 / 16K do.
SMALL = {"diffspec_token_budget": 256, "diffspec_chunk_size": 16}
DRAFT_LENGTH = 512


def scenario(name: str, **arguments: Any) -> Any:
    """Run one of ``scenarios`` in a process of its own."""
    return run_in_child(f"tests.engine.scenarios:{name}", arguments, env=environment(kv_gib=1))


@pytest.fixture(scope="session")
def short_draft_pair(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A recall pair whose draft says it was built for fewer tokens than the prompts have."""
    out = tmp_path_factory.mktemp("short-draft-pair")
    build_recall_pair(out, draft_max_position_embeddings=DRAFT_LENGTH)
    return str(out)


@pytest.fixture(scope="session")
def recall_prompts() -> list[RecallPrompt]:
    """Four lengths past the budget; each passage lies outside the window."""
    return [make_recall_prompt(n, seed=n) for n in (600, 900, 1200, 1400)]


@pytest.fixture(scope="session")
def recall(short_draft_pair: str, recall_prompts: list[RecallPrompt]) -> dict[str, Any]:
    """DiffSpec through single, batch, cached prefixes, sampling, turnover and faults."""
    result: dict[str, Any] = scenario(
        "recall_small",
        pair=short_draft_pair,
        prompts=[p.prompt_ids for p in recall_prompts],
        tokens=TOKENS,
        k=DEPTH,
        keys=SMALL,
        max_model_len=1600,
        max_num_batched_tokens=256,
        dtype="float32",
    )
    return result


@pytest.fixture(scope="session")
def preempted(short_draft_pair: str, recall_prompts: list[RecallPrompt]) -> dict[str, Any]:
    """DiffSpec in a KV cache too small for all requests."""
    result: dict[str, Any] = scenario(
        "preempted",
        pair=short_draft_pair,
        prompts=[make_recall_prompt(1000, seed=seed).prompt_ids for seed in range(4)],
        tokens=200,
        k=DEPTH,
        keys=SMALL,
        max_model_len=1600,
        num_gpu_blocks_override=35,
        enable_prefix_caching=True,
        dtype="float32",
    )
    return result


@pytest.fixture(scope="session")
def random_prompts() -> list[list[int]]:
    """Prompts whose contexts stay inside the budget and inside one prefill chunk."""
    return [
        [random.Random(i).randrange(3, 512) for _ in range(n)]
        for i, n in enumerate((60, 130, 200, 333))
    ]


@pytest.fixture(scope="session")
def smollm2_float32() -> Path:
    """SmolLM2-135M-Instruct as a float32 folder."""
    return smollm2_folder(dtype="float32")


SAMPLES = 400


@pytest.fixture(scope="session")
def random_arms(random_pair: RandomPair, random_prompts: list[list[int]]) -> dict[str, Any]:
    """Drafts on random weights: stock (padded) and DiffSpec, and sampled tokens of the latter."""
    common: dict[str, Any] = {
        "pair": str(Path(random_pair.target).parent),
        "prompts": random_prompts,
        "tokens": TOKENS,
        "k": 3,
        "max_model_len": 1024,
        "dtype": "float32",
    }
    keys = {"diffspec_token_budget": 512, "diffspec_chunk_size": 16}
    return {
        "stock": scenario("drafts_of", **common, keys={}),
        "diffspec": scenario(
            "drafts_of", **common, keys=keys, samples=[random_prompts[0]] * SAMPLES
        ),
    }


@pytest.fixture(scope="session")
def target_only(
    random_pair: RandomPair, random_arms: dict[str, Any], random_prompts: list[list[int]]
) -> dict[str, Any]:
    """The random target alone: greedy answers, and what it expects after each sampled token."""
    firsts = sorted({first for first, _ in random_arms["diffspec"]["samples"]})
    greedy, after = scenario(
        "target_only",
        target=str(random_pair.target),
        batches=[random_prompts, [[*random_prompts[0], first] for first in firsts]],
        tokens=TOKENS,
        logprobs=20,
        max_model_len=1024,
        dtype="float32",
    )
    return {
        "tokens": [answer["tokens"] for answer in greedy],
        "after": {
            first: {int(token): p for token, p in answer["logprobs"][0]}
            for first, answer in zip(firsts, after, strict=True)
        },
    }
