# SPDX-License-Identifier: Apache-2.0
"""vLLM's offline engine in this process, for tests and benchmarks.

The engine runs without a second process, so that a test can look into the worker, and a process
carries one engine: callers that compare arms start one process per arm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffspec.testbed.counters import SpecCounters

_RESULT = "DIFFSPEC-RESULT "
#: What makes DiffSpec of a configuration of EAGLE-3.
ON: Mapping[str, Any] = {"draft_context_policy": "diffspec"}


def eagle3(draft: str | Path, depth: int, **keys: Any) -> dict[str, Any]:
    """The object for ``speculative_config`` of an EAGLE-3 draft in the folder ``draft``."""
    return {"method": "eagle3", "model": str(draft), "num_speculative_tokens": depth, **keys}


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer. Times are in seconds; ``logprobs[i]`` maps token id → log-probability."""

    token_ids: list[int]
    ttft_s: float
    decode_s: float
    logprobs: list[dict[int, float]]

    @property
    def decode_tok_s(self) -> float:
        """Tokens per second, the first one excluded."""
        return (len(self.token_ids) - 1) / self.decode_s if self.decode_s else 0.0


class OfflineEngine:
    """An eager engine on this machine.

    Args:
        target: model folder.
        speculative: the object for ``speculative_config``; None serves the target alone.
        engine_args: passed on to ``vllm.LLM``, over the defaults here.
    """

    def __init__(
        self,
        target: str | Path,
        *,
        speculative: Mapping[str, Any] | None = None,
        **engine_args: Any,
    ) -> None:
        from vllm import LLM

        defaults: dict[str, Any] = {
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "max_num_seqs": 4,
            "disable_log_stats": False,
        }
        self.llm = LLM(
            str(target),
            speculative_config=None if speculative is None else dict(speculative),
            **{**defaults, **engine_args},
        )

    @property
    def worker(self) -> Any:
        """The engine's only worker."""
        return self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker

    @property
    def session(self) -> Any:
        """DiffSpec's session on the drafter."""
        return self.worker.diffspec

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int | Sequence[int],
        *,
        temperature: float = 0.0,
        logprobs: int | None = None,
        seed: int | None = None,
    ) -> list[Generation]:
        """Answer all prompts (token ids) as one batch, never stopping at an end token.

        ``max_tokens`` is one number for all or one for each.
        """
        from vllm import SamplingParams

        most = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens

        outputs = self.llm.generate(
            [{"prompt_token_ids": list(ids)} for ids in prompts],
            [
                SamplingParams(
                    temperature=temperature,
                    max_tokens=most[i],
                    ignore_eos=True,
                    detokenize=False,
                    logprobs=logprobs,
                    seed=None if seed is None else seed + i,
                )
                for i in range(len(prompts))
            ],
            use_tqdm=False,
        )
        answers = []
        for output in outputs:
            best, times = output.outputs[0], output.metrics
            answers.append(
                Generation(
                    token_ids=list(best.token_ids),
                    ttft_s=times.first_token_ts - times.scheduled_ts,
                    decode_s=times.last_token_ts - times.first_token_ts,
                    logprobs=[
                        {token: entry.logprob for token, entry in at.items()}
                        for at in best.logprobs or ()
                    ],
                )
            )
        return answers

    def counters(self) -> SpecCounters:
        """vLLM's counters since start-up."""
        drafts = tokens = accepted = 0
        at: list[int] = []
        for metric in self.llm.get_metrics():
            if metric.name == "vllm:spec_decode_num_drafts":
                drafts += int(metric.value)
            elif metric.name == "vllm:spec_decode_num_draft_tokens":
                tokens += int(metric.value)
            elif metric.name == "vllm:spec_decode_num_accepted_tokens":
                accepted += int(metric.value)
            elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
                at = [int(n) for n in metric.values]
        return SpecCounters(drafts, tokens, accepted, tuple(at))


def environment(kv_gib: int = 2, **more: str) -> dict[str, str]:
    """Variables for a process that runs an :class:`OfflineEngine`: this one's, and ours.

    Computing threads are bound to all cores, one each, and spin for 5 ms between parallel regions,
    as vLLM itself has it for those of a server's worker. Unbound, two threads share a core now and
    then, and they spin for 200 ms, beside whatever is measured next. Not so where vLLM is told to
    bind nothing: several processes would be bound to the same first core.
    """
    preload = Path(sys.prefix) / "lib" / "libiomp5.so"
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    ours = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if preload.exists():
        ours["LD_PRELOAD"] = f"{preload}:{os.environ.get('LD_PRELOAD', '')}".rstrip(":")
        if more.get("VLLM_CPU_OMP_THREADS_BIND") != "nobind":
            ours["KMP_AFFINITY"] = f"granularity=fine,explicit,proclist=[{cores}]"
            ours |= {"KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
    return {**os.environ, **ours, **more}


class ChildError(RuntimeError):
    """A child process ended without a result; the message ends with its log."""


def run_in_child(
    function: str, arguments: Mapping[str, Any], *, env: Mapping[str, str] | None = None
) -> Any:
    """Call ``module:name`` with keyword ``arguments`` in a fresh process; returns its result.

    Arguments and result travel as JSON.

    Raises:
        ChildError: the process failed.
    """
    child = subprocess.run(
        [sys.executable, "-m", "diffspec.testbed.offline", function],
        # Prompts outgrow a command line.
        input=json.dumps(arguments),
        env=dict(env or environment()),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = child.stdout.splitlines()
    for line in reversed(lines):
        if line.startswith(_RESULT):
            return json.loads(line.removeprefix(_RESULT))
    raise ChildError(f"{function}: exit status {child.returncode}\n" + "\n".join(lines[-40:]))


def _main(function: str) -> None:
    import importlib

    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(**json.load(sys.stdin))
    print(_RESULT + json.dumps(result), flush=True)
    # The engine's libraries complain at length about an orderly exit.
    os._exit(0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    _main(sys.argv[1])
