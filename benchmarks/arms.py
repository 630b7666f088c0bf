# SPDX-License-Identifier: Apache-2.0
"""One engine start per call, in a child process: an arm answers batches of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from diffspec.testbed.ablation import newest_chunks
from diffspec.testbed.offline import OfflineEngine, environment, run_in_child


def answer(
    target: str,
    speculative: Mapping[str, Any] | None,
    batches: Sequence[Sequence[Sequence[int]]],
    tokens: int,
    recent_only: bool = False,
    logprobs: int | None = None,
    **engine: Any,
) -> list[dict[str, Any]]:
    """Greedy answers to each batch, with vLLM's counters and times (seconds).

    ``recent_only`` makes DiffSpec pick the newest chunks instead of the heaviest, at the same
    budget: what a sink and a sliding window would be.
    """
    llm = OfflineEngine(target, speculative=speculative, **engine)
    cycle = llm.session.cycle if "draft_context_policy" in (speculative or {}) else None
    assert cycle is not None or not recent_only, "only DiffSpec picks chunks"
    results = []
    for prompts in batches:
        before = llm.counters()
        retrievals = cycle.counters.retrievals if cycle else 0
        with newest_chunks(cycle.working_set) if recent_only else nullcontext():
            answers = llm.generate(prompts, tokens, logprobs=logprobs)
        counted = llm.counters() - before
        results.append(
            {
                "tokens": [a.token_ids for a in answers],
                "ttft_s": [round(a.ttft_s, 4) for a in answers],
                "decode_tok_s": [round(a.decode_tok_s, 2) for a in answers],
                "logprobs": [[list(at.items()) for at in a.logprobs] for a in answers],
                "counters": asdict(counted),
                "acceptance_length": counted.acceptance_length,
                "per_position": counted.per_position,
                "retrievals": cycle.counters.retrievals - retrievals if cycle else None,
            }
        )
    return results


def run_arm(**arguments: Any) -> list[dict[str, Any]]:
    """:func:`answer` in a fresh process."""
    result: list[dict[str, Any]] = run_in_child(
        "benchmarks.arms:answer", arguments, env=environment(kv_gib=4)
    )
    return result
