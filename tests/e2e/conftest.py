# SPDX-License-Identifier: Apache-2.0
"""One pair and one DiffSpec server for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diffspec.cli.serving import Server, serve
from diffspec.testbed.recall_pair import RecallPair, build_recall_pair

DEPTH, DRAFT_LENGTH = 5, 512
# Not eager: the tap and the draft's parts have to work beside vLLM's compiled target.
FLAGS = (
    *("--dtype", "float32"),
    *("--max-model-len", "1600", "--max-num-seqs", "4", "--max-num-batched-tokens", "512"),
)
KEYS = {
    "draft_context_policy": "diffspec",
    "diffspec_token_budget": 256,
    "diffspec-chunk-size": 16,  # a dash, as users write them
}
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> RecallPair:
    """A recall pair whose draft was built for fewer tokens than the prompts have."""
    out = tmp_path_factory.mktemp("served-pair")
    return build_recall_pair(out, draft_max_position_embeddings=DRAFT_LENGTH)


def speculative(pair: RecallPair) -> dict[str, object]:
    """The object for ``--speculative-config``."""
    stock = {"method": "eagle3", "model": str(pair.draft), "num_speculative_tokens": DEPTH}
    return {**stock, **KEYS}


@pytest.fixture(scope="package")
def server(pair: RecallPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The pair, served with DiffSpec."""
    with serve(
        pair.target,
        log=tmp_path_factory.mktemp("logs") / "server.log",
        args=FLAGS,
        speculative=speculative(pair),
        env=ENVIRONMENT,
    ) as running:
        yield running
