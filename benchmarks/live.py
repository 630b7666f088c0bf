# SPDX-License-Identifier: Apache-2.0
"""Arms that stay up, one process each, so that their runs can alternate on the same two cores.

An arm that is not asked for anything sleeps in a read; only one is ever asked at a time.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.relay import PausableTime, Turns, answer_by_turns, toggle
from diffspec.testbed.offline import environment

_MARK = "DIFFSPEC-LIVE "
#: Seconds in which computing threads have gone to sleep.
SETTLE = 0.02


class LiveArm:
    """One engine in a child process.

    Args:
        name: what tables call it.
        log: file that gets the engine's output.
        config: arguments of :class:`~diffspec.testbed.offline.OfflineEngine`.

    Raises:
        RuntimeError: the engine did not start; the message names the log.
    """

    def __init__(self, name: str, log: Path, **config: Any) -> None:
        self.name, self._log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._sink = log.open("w")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.live"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._sink,
            text=True,
            env=environment(kv_gib=2),
        )
        self._ask(config)

    def run(self, prompts: Sequence[Sequence[int]], tokens: int, **hooks: Any) -> dict[str, Any]:
        """Answer ``prompts`` as one batch; see :func:`_answer` for the result.

        ``hooks`` are those of :mod:`diffspec.testbed.ablation`, for a DiffSpec arm: another way to
        pick chunks, a fixed depth, a draft that is wrong for a while. ``None`` leaves one out.
        """
        given = {"prompts": [list(p) for p in prompts], "tokens": tokens}
        return self._ask({**given, **{k: v for k, v in hooks.items() if v is not None}})

    def turns(self, prompts: Sequence[Sequence[int]], tokens: int, **hooks: Any) -> Turns:
        """As :meth:`run`, by turns: after ``start`` tokens of each request, and then after every
        ``turn``, the engine waits until it is asked to go on. Instead of speeds, which would
        count the waiting, the result has spans of ``span`` tokens; see
        :class:`~benchmarks.relay.Spans`. ``hooks`` has these three numbers, too."""
        answer = self.run(prompts, tokens, **hooks)
        while "paused" in answer:
            yield
            answer = self._ask({})
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=60)
        self._sink.close()

    def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(what) + "\n")
        self._child.stdin.flush()
        for line in self._child.stdout:
            if line.startswith(_MARK):
                result: dict[str, Any] = json.loads(line.removeprefix(_MARK))
                return result
            self._sink.write(line)
        self._sink.flush()
        end = "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"arm {self.name!r} ended; its log {self._log} ends with:\n{end}")


def alternate(
    runs: Mapping[str, Callable[[int], dict[str, Any]]],
    repeats: int,
    log: Callable[[str], None],
    first: int = 0,
) -> dict[str, list[dict[str, Any]]]:
    """Run every arm once per repeat, in another order each time; results by arm.

    A run is called with the number of its repeat, counted from ``first``. The orders are shuffled,
    from a fixed seed: no arm always follows the same other one.
    """
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    names = list(runs)
    for repeat in range(first, first + repeats):
        random.Random(repeat).shuffle(names)
        for name in names:
            result = runs[name](repeat)
            results[name].append(result)
            log(
                f"  {repeat + 1}/{first + repeats} {name}: first token {result['ttft_s']:.2f} s, "
                f"{result['decode_tok_s']:.1f} tok/s"
            )
    return results


def paired_ratio(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    over: str,
    under: str,
    what: str = "decode_tok_s",
) -> float | None:
    """Median over repeats of the ratio of two arms' ``what``; None if an arm was not run."""
    if not runs.get(over) or not runs.get(under):
        return None
    pairs = zip(runs[over], runs[under], strict=True)
    return round(statistics.median(a[what] / b[what] for a, b in pairs), 4)


def _answer(
    engine: Any, clock: Any, prompts: list[list[int]], tokens: int, *, trace: bool = False
) -> dict[str, Any]:
    """Greedy answers with times in seconds and the parts of a decode step; ``trace`` adds the
    tokens sampled and the drafts verified in every step."""
    before = engine.counters()
    clock.reset()
    answers = engine.generate(prompts, tokens)
    counted = engine.counters() - before
    first = answers[0]
    return {
        "tokens": [a.token_ids for a in answers],
        "ttft_s": first.ttft_s,
        "decode_s": max(a.decode_s for a in answers),
        "decode_tok_s": sum(a.decode_tok_s for a in answers),
        "drafts": counted.drafts,
        "accepted": counted.accepted,
        "acceptance_length": counted.acceptance_length,
        "per_position": counted.per_position,
        "steps": clock.steps,
        "split_ms_per_step": {name: round(ms, 4) for name, ms in clock.read().items()},
        **({"trace": [mark[1:] for mark in clock.marks]} if trace else {}),
    }


def _serve() -> None:
    now = PausableTime()
    from benchmarks.split import StepClock
    from diffspec.testbed import ablation
    from diffspec.testbed.offline import OfflineEngine

    def reply(what: Mapping[str, Any]) -> None:
        print("\n" + _MARK + json.dumps(what), flush=True)

    def wait() -> None:
        time.sleep(SETTLE)
        reply({"paused": True})
        sys.stdin.readline()

    config = json.loads(sys.stdin.readline())
    silent = config.pop("silent_drafter", False)
    engine = OfflineEngine(**config)
    if silent:
        ablation.silence(engine.worker.model_runner.drafter)
    ours = "draft_context_policy" in (config["speculative"] or {})
    session = engine.session if ours else None
    clock = StepClock(engine.worker, session)
    reply({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        with ExitStack() as hooks:
            if asked.pop("recent_only", False):
                hooks.enter_context(ablation.newest_chunks(session.cycle.working_set))
            if (depth := asked.pop("depth", None)) is not None:
                hooks.enter_context(ablation.pinned_depth(session.cycle, depth))
            if span := asked.pop("wrong_between", None):
                hooks.enter_context(ablation.wrong_drafts(session.cycle, clock.generated, *span))
            pause: Callable[[], None] = partial(now.stand_still, wait)
            if silence := asked.pop("silence", ()):
                turn = ablation.silence_switch(session, now.stand_still)
                pause = toggle(hooks.enter_context(turn), silence, now)
            if "span" in asked:
                answer = answer_by_turns(engine, clock, pause, **asked)
            else:
                answer = _answer(engine, clock, **asked)
        if session:
            answer["faults"] = sum(session.cycle.faults.counts.values())
        reply(answer)


if __name__ == "__main__":
    _serve()
    # The engine's libraries complain at length about an orderly exit.
    os._exit(0)
