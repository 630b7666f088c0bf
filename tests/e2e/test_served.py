# SPDX-License-Identifier: Apache-2.0
"""A served DiffSpec engine over HTTP, and the same command with the plugin switched off."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from diffspec.cli.client import Client, parse_decode_times
from diffspec.cli.serving import Server, ServerError, serve
from diffspec.testbed.recall_pair import RecallPair
from diffspec.testbed.recall_prompts import make_recall_prompt
from tests.e2e.conftest import DEPTH, DRAFT_LENGTH, FLAGS, speculative

pytestmark = pytest.mark.e2e

TOKENS = 64
STEPS = "vllm:diffspec_request_steps_total"


def test_long_prompts_get_the_right_tokens_from_accepted_drafts(server: Server) -> None:
    prompt = make_recall_prompt(1400, seed=1)
    with Client(server) as client:
        answer = client.measure(list(prompt.prompt_ids), TOKENS)
    assert answer.token_ids == list(prompt.continuation_ids)[:TOKENS]
    assert answer.counters.accepted_share >= 0.95


def test_the_server_tells_how_long_it_decoded_as_soon_as_an_answer_is_complete(
    server: Server,
) -> None:
    prompt = make_recall_prompt(300, seed=4)
    with Client(server) as client:
        ended, seconds = parse_decode_times(client.get("/metrics"))
        answer = client.complete(list(prompt.prompt_ids), TOKENS)
        ended_then, seconds_then = parse_decode_times(client.get("/metrics"))
    assert ended_then == ended + 1
    assert 0 < seconds_then - seconds < answer.latency_s


def test_concurrent_requests_of_mixed_lengths(server: Server) -> None:
    prompts = [make_recall_prompt(n, seed=n) for n in (300, 700, 1100, 1450)]
    with Client(server) as client, ThreadPoolExecutor(len(prompts)) as pool:
        before = client.spec_counters()
        answers = list(
            pool.map(lambda p: client.complete(list(p.prompt_ids), TOKENS).token_ids, prompts)
        )
        counted = client.spec_counters() - before
    assert answers == [list(p.continuation_ids)[:TOKENS] for p in prompts]
    # How deep to draft is the policy's business; what is drafted is right.
    assert counted.accepted_share >= 0.95


def test_a_request_without_temperature_samples_and_is_right(server: Server) -> None:
    """vLLM's default is to sample; the pair's margins leave no other token a chance."""
    prompt = make_recall_prompt(900, seed=2)
    with Client(server) as client:
        answer = client.measure(list(prompt.prompt_ids), TOKENS, temperature=None)
    assert answer.token_ids == list(prompt.continuation_ids)[:TOKENS]
    assert answer.counters.accepted_share >= 0.95


def test_output_up_to_the_last_position(server: Server) -> None:
    """Drafts stop where the context ends, and nothing is lost there."""
    prompt = make_recall_prompt(1500, seed=3)
    with Client(server) as client:
        answer = client.measure(list(prompt.prompt_ids), 100)
    assert answer.token_ids == list(prompt.continuation_ids)[:100]
    assert answer.counters.acceptance_length is not None


def summed(server: Server) -> dict[str, float]:
    """Sum of the samples of each name in the server's /metrics; ``drafted steps`` are DiffSpec's
    request-steps with drafts."""
    page = httpx.get(f"{server.url}/metrics", trust_env=False).raise_for_status().text
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
            if sample.name == STEPS and sample.labels["depth"] != "0":
                totals["drafted steps"] = totals.get("drafted steps", 0.0) + sample.value
    return totals


def test_the_metrics_agree_with_vllms_own(server: Server) -> None:
    prompt = make_recall_prompt(1000, seed=4)
    before = summed(server)
    with Client(server) as client:
        counted = client.measure(list(prompt.prompt_ids), TOKENS).counters
    # The difference: of a request that was cancelled before, vLLM does not count the last step.
    found = {name: value - before.get(name, 0.0) for name, value in summed(server).items()}
    assert found["drafted steps"] > 0
    assert found[STEPS] == found["drafted steps"] + found["vllm:diffspec_depth_zero_total"]
    # What the request's last step proposed is not verified any more.
    assert 0 <= found["drafted steps"] - counted.drafts <= 1
    assert found["vllm:spec_decode_num_drafts_total"] == counted.drafts
    assert sum(counted.accepted_at) == counted.accepted
    assert list(counted.accepted_at) == sorted(counted.accepted_at, reverse=True)
    assert counted.accepted_at[0] <= counted.drafts, "a step accepts its first token at most once"
    assert len(counted.accepted_at) == DEPTH
    drafted, accepted = "vllm:diffspec_drafted_tokens_total", "vllm:diffspec_accepted_tokens_total"
    assert found[drafted] == found["vllm:spec_decode_num_draft_tokens_total"] > 0
    assert found[accepted] == found["vllm:spec_decode_num_accepted_tokens_total"] > 0
    assert found["vllm:diffspec_retrievals_total"] > 0
    assert found["vllm:diffspec_step_seconds_total"] > 0
    after = summed(server)
    assert after["vllm:diffspec_off"] == after["vllm:diffspec_faults_total"] == 0


def test_the_log_says_what_was_changed_and_allocated(server: Server) -> None:
    log = server.log.read_text()
    assert "DiffSpec: budget 256 tokens in chunks of 16" in log
    assert f"draft trained for {DRAFT_LENGTH} tokens" in log
    assert "set disable_padded_drafter_batch = true" in log
    assert "set worker_cls = diffspec.hosts.vllm.cpu_worker.DiffSpecCPUWorker" in log
    assert "working cache 2.0 MiB" in log
    assert "expand_batch_to_tokens" in log
    assert "ERROR" not in log


def test_switched_off_the_same_command_is_refused_by_vllm(pair: RecallPair, tmp_path: Path) -> None:
    """With the plugin off its keys are vLLM's business: unknown, and nothing of ours runs."""
    log = tmp_path / "off.log"
    with (
        pytest.raises(ServerError, match="exit code"),
        serve(
            pair.target,
            log=log,
            args=FLAGS,
            speculative=speculative(pair),
            env={"DIFFSPEC_DISABLE": "1"},
        ),
    ):
        pytest.fail("the server must not become healthy")
    text = log.read_text()
    assert "Unexpected keyword argument" in text
    assert "DiffSpec:" not in text
