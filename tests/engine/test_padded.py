# SPDX-License-Identifier: Apache-2.0
"""Padded batches as the Ascend adapter reads them, from a real runner."""

from __future__ import annotations

import pytest

from diffspec.testbed.offline import environment, run_in_child
from diffspec.testbed.recall_prompts import RecallPrompt
from tests.engine.conftest import DEPTH, SMALL

pytestmark = pytest.mark.engine

TOKENS = 40


def test_padded_batches_draft_rightly_and_keep_rejected_rows_out(
    short_draft_pair: str, recall_prompts: list[RecallPrompt]
) -> None:
    found = run_in_child(
        "tests.engine.padded:padded",
        {
            "pair": short_draft_pair, "prompts": [p.prompt_ids for p in recall_prompts],
            "tokens": TOKENS, "k": DEPTH, "keys": SMALL, "max_model_len": 1600,
            "max_num_batched_tokens": 256, "dtype": "float32",
        },
        env=environment(kv_gib=1),
    )  # fmt: skip
    assert found["session"] == "PaddedSession"
    expected = [p.continuation_ids[:TOKENS] for p in recall_prompts]
    for answers in (found["right"], found["wrong"]):
        assert answers["tokens"] == expected
    assert found["right"]["per_position"] == [1.0] * DEPTH
    # Every third token wrong: two chains of three have a right first one, one of three a second
    # one, too, as long as the caches hold what was accepted and nothing else.
    first, second, *rest = found["wrong"]["per_position"]
    assert rest == [0.0] * (DEPTH - 2)
    assert 0.6 < first < 0.75
    assert 0.3 < second < 0.4
    assert found["rejected"] > 100
    assert found["going_on"] > 20, "prompts are read in chunks of 256 rows for all requests"
    assert found["faults"] == 0
