# SPDX-License-Identifier: Apache-2.0
"""Checks of what is answered: alone, at every batch size, in a crowd, and near the end."""

from __future__ import annotations

from diffspec.cli.qualify.agreement import Tally
from diffspec.cli.qualify.bench import Bench, Row
from diffspec.cli.qualify.endpoint import read

#: Numbers of the prompts of each check, apart from each other.
_ALONE, _BATCHES, _CROWD, _LONG = 0, 100, 200, 300


def correctness(bench: Bench) -> Row:
    """One request at a time, of every length: target-only's tokens, or the same ones again."""
    tally, before = Tally(), read(bench.target).spec.drafts if bench.target else 0
    for number, length in enumerate(bench.plan.lengths):
        for i in (0, 1):
            prompt = bench.prompt(length, _ALONE + 2 * number + i)
            bench.expected(prompt)
            bench.compare(tally, f"{length} tokens", prompt, bench.answer(prompt))
    if bench.target is None:
        told = "no target-only endpoint given: every answer compared with itself, asked for again"
        return bench.check("correctness", tally, told)
    if read(bench.target).spec.drafts != before:
        told = "the endpoint given as target-only speculates itself, so it proves nothing"
        return bench.check("correctness", tally, told, passed=False)
    return bench.check("correctness", tally, "against target-only")


def replay(bench: Bench) -> Row:
    """Every batch size the server takes, twice: graphs captured for a size give the same tokens."""
    tally, length = Tally(), bench.plan.lengths[0]
    pool = [bench.prompt(length, _BATCHES + i) for i in range(bench.plan.batch)]
    for prompt in pool:
        bench.expected(prompt)
    most = 0.0
    for size in range(1, bench.plan.batch + 1):
        noise = bench.noise(pool[:size])
        most = max(most, noise)
        for turn in ("first", "again"):
            answers = bench.ours.together(pool[:size], bench.plan.tokens)
            for prompt, answer in zip(pool, answers, strict=False):
                bench.compare(tally, f"{size} at once, {turn}", prompt, answer, noise)
    told = f"1 to {bench.plan.batch} at once, each twice"
    return bench.check("capture and replay", tally, told, *_noisy(bench, most))


def _noisy(bench: Bench, noise: float) -> list[str]:
    if noise <= bench.plan.tie:
        return []
    return [f"target-only itself changes between tokens {noise:.2g} apart in such a crowd"]


def concurrency(bench: Bench) -> Row:
    """More requests than the server takes at once, of mixed lengths."""
    tally, lengths = Tally(), bench.plan.lengths
    count = bench.plan.batch + 2
    prompts = [bench.prompt(lengths[i % len(lengths)], _CROWD + i) for i in range(count)]
    for prompt in prompts:
        bench.expected(prompt)
    noise = bench.noise(prompts)
    answers = bench.ours.together(prompts, bench.plan.tokens)
    for prompt, answer in zip(prompts, answers, strict=True):
        bench.compare(tally, f"{len(prompt)} tokens among {count}", prompt, answer, noise)
    told = f"{count} different requests at once"
    return bench.check("concurrency", tally, told, *_noisy(bench, noise))


def long_context(bench: Bench) -> Row:
    """The longest prompt, as far as it goes with the answer."""
    tally, length = Tally(), bench.plan.longest
    prompt = bench.prompt(length, _LONG)
    bench.expected(prompt)
    bench.compare(tally, f"{length} tokens", prompt, bench.answer(prompt))
    limit = bench.plan.max_model_len
    of = f" of {limit}" if limit else ""
    return bench.check("long context", tally, f"{length} prompt tokens{of}")
