# SPDX-License-Identifier: Apache-2.0
"""Checks of what survives: clients that go away, and requests that make no sense."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from diffspec.cli.qualify.agreement import Tally
from diffspec.cli.qualify.bench import Bench, Row
from diffspec.cli.qualify.endpoint import read, settled

_CANCELLED = 400
#: Tokens that a client asks for before it goes away, where the context has room.
_MUCH = 1024
_PATH = "/v1/completions"


def cancellation(bench: Bench) -> Row:
    """Clients leave in mid-answer: neighbours and later requests go on, nothing keeps running."""
    tally, plan = Tally(), bench.plan
    length = plan.lengths[0]
    stays, *leave = [bench.prompt(length, _CANCELLED + i) for i in range(max(2, plan.batch))]
    bench.expected(stays)
    # Long answers, because a fast server's stream may bring a short one in a single piece.
    wanted = min(_MUCH, plan.longest + plan.tokens - length)
    after = max(1, plan.tokens // 4)
    noise = bench.noise([stays, *leave])
    with ThreadPoolExecutor(1 + len(leave)) as pool:
        neighbour = pool.submit(bench.answer, stays)
        gone = list(pool.map(lambda p: bench.ours.leave(p, wanted, after), leave))
        bench.compare(tally, "the request beside them", stays, neighbour.result(), noise)
    bench.compare(tally, "a request after them", stays, bench.answer(stays))
    idle = settled(bench.ours, lambda reading: not reading.busy, plan.deadline_s)
    left = f"{len(leave)} streams left after {', '.join(map(str, gone))} of {wanted} tokens"
    # A stream may be done before the connection is closed; then nothing was cancelled.
    dropped = any(count < wanted for count in gone)
    if idle.busy is None:
        told = "/metrics does not say how many requests run"
    else:
        told = f"{idle.busy:.0f} requests running or waiting afterwards"
    return bench.check("cancellation", tally, left, told, passed=dropped and idle.busy == 0)


def bad_requests(model: str, too_long: list[int]) -> dict[str, bytes]:
    """Requests that no server can answer, by what is wrong with them."""
    good: dict[str, Any] = {"model": model, "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}
    wrong = {
        "no such model": good | {"model": f"{model}-that-is-not-served"},
        "a negative length": good | {"max_tokens": -1},
        "a negative temperature": good | {"temperature": -1},
        "a million log-probabilities": good | {"logprobs": 1_000_000},
        "a prompt of the wrong type": good | {"prompt": {"text": "a"}},
    }
    if too_long:
        wrong["a prompt past max_model_len"] = good | {"prompt": too_long}
    bodies = {what: json.dumps(body).encode() for what, body in wrong.items()}
    return {"no JSON": b'{"model": ', **bodies}


def recovery(bench: Bench) -> Row:
    """Every bad request is refused with a 4xx, and the server goes on as before."""
    tally, limit = Tally(), bench.plan.max_model_len
    prompt = bench.prompt(bench.plan.lengths[0], _CANCELLED)
    bench.expected(prompt)
    before = read(bench.ours)["vllm:diffspec_faults_total"]
    too_long = (prompt * (1 + (limit or 0) // len(prompt)))[: limit + 1] if limit else []
    answered = {
        what: bench.ours.status(_PATH, body)
        for what, body in bad_requests(bench.ours.name, too_long).items()
    }
    wrong = [f"{what}: HTTP {code}" for what, code in answered.items() if not 400 <= code < 500]
    bench.ours.get("/health")
    bench.compare(tally, "a request after them", prompt, bench.answer(prompt))
    faults = read(bench.ours)["vllm:diffspec_faults_total"] - before
    refused = f"{len(answered) - len(wrong)} of {len(answered)} bad requests refused"
    more = [refused, *wrong, f"{faults:.0f} faults"]
    return bench.check("exception recovery", tally, *more, passed=not wrong and not faults)
