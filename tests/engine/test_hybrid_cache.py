# SPDX-License-Identifier: Apache-2.0
"""The policy in a real engine whose layers share pages: half of the target's layers have a sliding
window, so that vLLM gives their pages back as the text goes on and hands them to other layers.

The draft is always wrong, so drafting stops and rows wait to be written. Written a step too late,
they would land in what is by then another layer's page, the target's own among them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from diffspec.testbed.identity import compare
from diffspec.testbed.random_pair import build_random_pair
from tests.engine.conftest import scenario

pytestmark = pytest.mark.engine

WINDOW = 64
REQUESTS = 24
ENGINE: dict[str, Any] = {
    "max_model_len": 320,
    "max_num_seqs": 2,
    "block_size": 16,
    "dtype": "float32",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("hybrid")
    pair = build_random_pair(out, seed=5)
    config = Path(pair.target) / "config.json"
    kinds = ["sliding_attention", "full_attention"] * 2
    with_windows = json.loads(config.read_text()) | {"layer_types": kinds, "sliding_window": WINDOW}
    config.write_text(json.dumps(with_windows))
    draw = random.Random(1)
    prompts = [
        [draw.randrange(3, 512) for _ in range(draw.randrange(150, 240))] for _ in range(REQUESTS)
    ]
    tokens = [draw.randrange(20, 70) for _ in prompts]
    return {
        "ours": scenario(
            "resting",
            pair=str(out),
            prompts=prompts,
            tokens=tokens,
            k=3,
            keys={"diffspec_token_budget": 128, "diffspec_chunk_size": 16},
            num_gpu_blocks_override=80,  # few, so that pages change hands at once
            **ENGINE,
        ),
        "target": scenario(
            "target_only",
            target=str(pair.target),
            batches=[prompts],
            tokens=max(tokens),
            logprobs=5,
            **ENGINE,
        )[0],
    }


def test_layers_share_pages_and_rows_wait(answers: Any) -> None:
    ours = answers["ours"]
    assert ours["groups"] > 1
    assert ours["shared"] > 1
    assert ours["rested"] > 500
    assert 0 < ours["drafts"] < ours["rested"]
    assert ours["faults"] == {}


def test_no_row_is_written_to_a_page_that_changed_hands(answers: Any) -> None:
    written = answers["ours"]["written"]
    assert written["before"] > 0
    assert written["after"] > written["before"]
    assert written["strays"] == 0


def test_every_answer_is_target_onlys(answers: Any) -> None:
    for tokens, alone in zip(answers["ours"]["tokens"], answers["target"], strict=True):
        logits = [{int(token): p for token, p in at} for at in alone["logprobs"]]
        found = compare(tokens, alone["tokens"][: len(tokens)], logits, "float32")
        assert found is None or found.tie, found
