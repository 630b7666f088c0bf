# SPDX-License-Identifier: Apache-2.0
"""The arms of a served comparison: the same requests to servers that differ in one object.

target-only serves without ``--speculative-config``, stock EAGLE-3 with vLLM's own keys, and
DiffSpec with the same draft and the DiffSpec keys added. A fourth arm is stock EAGLE-3 at its
best: with the same draft built to run at every length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffspec.cli.client import Client, Completion
from diffspec.cli.progress import Reporter
from diffspec.cli.serving import Server, free_ports, runs_on_cpu, start
from diffspec.testbed.offline import ON, eagle3

TARGET_ONLY = "target-only"
EAGLE3 = "stock EAGLE-3"
EAGLE3_LONG = "stock EAGLE-3, 40K draft"
LONG_WINDOW = 40 * 1024
DIFFSPEC = "DiffSpec"
WARM_UP_TOKENS = 8
# The demo's requests come one at a time; a larger KV cache would only lengthen the start.
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}
# Starting is one thread's work, three imports of vLLM in a row. On an accelerator two servers would
# each want most of its memory.
STARTED_TOGETHER = 2


@dataclass(frozen=True)
class Arm:
    """One server to start. ``speculative`` is the object for ``--speculative-config``."""

    label: str
    speculative: dict[str, Any] | None


@dataclass(frozen=True)
class Request:
    """A prompt of token ids and the number of tokens to generate."""

    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Result:
    """What one arm answered to one request."""

    arm: str
    request: Request
    completion: Completion


def three_arms(draft: Path, depth: int, keys: Mapping[str, Any] | None = None) -> list[Arm]:
    """Target-only, stock EAGLE-3, and DiffSpec with ``keys`` beside ``draft_context_policy``."""
    stock = eagle3(draft, depth)
    ours = {**stock, **ON, **(keys or {})}
    return [Arm(TARGET_ONLY, None), Arm(EAGLE3, stock), Arm(DIFFSPEC, ours)]


def four_arms(draft: Path, long_draft: Path, depth: int) -> list[Arm]:
    """:func:`three_arms`, and stock EAGLE-3 with ``long_draft`` (``LONG_WINDOW`` positions)."""
    target_only, stock, ours = three_arms(draft, depth)
    long = Arm(EAGLE3_LONG, {**(stock.speculative or {}), "model": str(long_draft)})
    return [target_only, long, stock, ours]


def engine_flags(dtype: str, max_model_len: int, *, prefixes: bool = False) -> list[str]:
    """Flags that every arm shares; without caching of ``prefixes`` every prompt is read whole."""
    flags = ["--dtype", dtype, "--max-model-len", str(max_model_len), "--max-num-seqs", "4"]
    caching = "--enable-prefix-caching" if prefixes else "--no-enable-prefix-caching"
    return [*flags, "--enforce-eager", caching]


def run_arms(
    arms: Sequence[Arm],
    model: Path,
    flags: Sequence[str],
    requests: Sequence[Request],
    *,
    logs: Path,
    reporter: Reporter,
) -> list[Result]:
    """Serve the arms and send each the requests one by one, after a short warm-up.

    On a CPU two arms start at a time; one is asked while the other waits.

    Args:
        arms: the servers to start.
        model: folder of the target.
        flags: ``vllm serve`` flags of every arm.
        requests: sent to every arm in this order.
        logs: folder for the servers' logs.
        reporter: is told what is going on.

    Raises:
        ServerError: a server could not be started.
        RequestError: a server refused a request or died.
    """
    results: list[Result] = []
    at_once = STARTED_TOGETHER if runs_on_cpu() else 1
    for first in range(0, len(arms), at_once):
        group = arms[first : first + at_once]
        reporter.begin(f"{' and '.join(arm.label for arm in group)}: starting vLLM")
        with ExitStack() as running:
            started = []
            for arm, port in zip(group, free_ports(len(group)), strict=True):
                name = f"{model.name}-{arm.label.replace(',', '').replace(' ', '-').lower()}.log"
                starting = start(
                    model,
                    log=logs / name,
                    port=port,
                    args=flags,
                    speculative=arm.speculative,
                    env=ENVIRONMENT,
                )
                started.append(running.enter_context(starting))
            # Nothing is measured before all of them wait: from then on an idle one takes no time.
            servers = [starting.wait() for starting in started]
            took = max(server.start_s for server in servers)
            reporter.note(f"serving after {took:.0f} s")
            for arm, server in zip(group, servers, strict=True):
                results += _measure(arm, server, requests, reporter)
            reporter.begin("stopping vLLM")
    return results


def _measure(
    arm: Arm, server: Server, requests: Sequence[Request], reporter: Reporter
) -> Iterator[Result]:
    with Client(server) as client:
        client.complete(requests[0].prompt[:64], WARM_UP_TOKENS)
        for request in requests:
            what = f"{arm.label}: {len(request.prompt)} prompt tokens"
            reporter.begin(what, total=request.max_tokens)
            done = client.measure(request.prompt, request.max_tokens, on_tokens=reporter.tokens)
            reporter.note(
                f"{what}, first token {done.ttft_s:.1f} s, then {done.decode_tok_s:.1f} tok/s"
            )
            yield Result(arm.label, request, done)
