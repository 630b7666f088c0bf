# SPDX-License-Identifier: Apache-2.0
"""A server asked for something impossible ends before weights load, with our message last."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from diffspec.cli.serving import serve_command
from diffspec.testbed.random_pair import RandomPair, build_random_pair

pytestmark = pytest.mark.e2e

LOADING = ("Starting to load model", "Loading weights", "Loading safetensors", "init engine")


def serve(
    pair: RandomPair, spec: dict[str, Any], *flags: str, **environ: str
) -> tuple[int, str, str]:
    """Exit code, all output and the last traceback's message of one server that must not start."""
    base = {"method": "eagle3", "model": str(pair.draft), "num_speculative_tokens": 3}
    command = serve_command(
        pair.target,
        port=8000,  # never bound: the server ends while it is being configured
        name="pair",
        args=("--enforce-eager", "--dtype", "float32", *flags),
        speculative=base | spec,
    )
    closed = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        command,
        env=os.environ | closed | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout, done.stdout[done.stdout.rfind("Traceback") :]


def test_wrong_keys_and_flags_are_named_together(random_pair: RandomPair) -> None:
    code, output, message = serve(
        random_pair,
        {
            "model": "/no/such/draft",
            "draft_context_policy": "diffspec",
            "diffspec_chunk_size": 48,
            "diffspec_bugdet": 1024,
            "draft_sample_method": "probabilistic",
        },
        "--pipeline-parallel-size",
        "2",
        "--async-scheduling",
    )
    assert code != 0
    assert not any(line in output for line in LOADING)
    assert "vllm-diffspec cannot start with this configuration (6 problems):" in message
    for part in (
        "diffspec_chunk_size = 48: must be a power of two from 16 to 512",
        "diffspec_bugdet = 1024: unknown key; did you mean diffspec_token_budget?",
        'draft_sample_method = "probabilistic"',
        'model = "/no/such/draft": no such folder',
        "--async-scheduling",
    ):
        assert part in message
    # The last line a user sees is the last problem, not a consequence of it.
    assert "  6. --pipeline-parallel-size 2" in message.rstrip().splitlines()[-1]


def test_a_draft_for_another_target_is_named(
    random_pair: RandomPair, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = build_random_pair(
        tmp_path_factory.mktemp("other-pair"),
        draft_layers=2,
        hidden=192,
        vocab=600,
        draft_max_position_embeddings=1000,
    )
    code, output, message = serve(
        random_pair,
        {
            "model": str(other.draft),
            "draft_context_policy": "diffspec",
            "diffspec_token_budget": 1024,
        },
    )
    assert code != 0
    assert not any(line in output for line in LOADING)
    assert "(4 problems)" in message
    for part in (
        "num_hidden_layers = 2; use a one-layer EAGLE-3 draft",
        "vocab_size = 600 but the target 512",
        "192",
        "must be at most 960: the draft's trained window is 1000",
    ):
        assert part in message


def test_a_disabled_plugin_is_not_silently_ignored(random_pair: RandomPair) -> None:
    code, output, message = serve(
        random_pair, {"draft_context_policy": "diffspec"}, DIFFSPEC_DISABLE="1"
    )
    assert code != 0
    assert not any(line in output for line in LOADING)
    # vLLM's own words for a key it does not know.
    assert "draft_context_policy" in message
    assert "Unexpected keyword argument" in message
