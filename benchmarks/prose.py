# SPDX-License-Identifier: Apache-2.0
"""Real text: SmolLM2-135M and its EAGLE-3 head on prose the head was not trained on.

    python -m benchmarks.prose [--lengths 400,1500,7000] [--budgets 512,1024] [--out FILE]

Target-only, stock EAGLE-3 and DiffSpec with several budgets answer the same prompts by turns. Each
DiffSpec arm also runs as a sink and a sliding window of the same budget, so that what retrieval
adds is seen and not assumed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.live import LiveArm, alternate
from benchmarks.record import write
from diffspec.testbed.offline import ON, eagle3
from diffspec.testbed.smollm2 import smollm2_folder

DATA = Path(__file__).resolve().parents[1] / "data"
TARGET, STOCK = "target-only", "stock EAGLE-3"
WINDOW = ", recent only"
MARGIN = 16
console = Console(stderr=True, width=110)

Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def prompts_of(length: int, count: int, tokens: int) -> list[list[int]]:
    """``count`` stretches of ``length`` tokens, spread over the held-out play."""
    from transformers import AutoTokenizer

    play = (DATA / "plays" / "winters-tale.txt").read_text(encoding="utf-8")
    ids = AutoTokenizer.from_pretrained(smollm2_folder())(play)["input_ids"]
    step = (len(ids) - length - tokens) // max(1, count - 1)
    return [ids[i * step : i * step + length] for i in range(count)]


def start_arms(
    budgets: Sequence[int], depth: int, dtype: str, max_model_len: int, logs: Path
) -> dict[str, LiveArm]:
    """One engine per arm."""
    stock = eagle3(DATA / "smollm2-135m-eagle3", depth)
    configs = {TARGET: None, STOCK: stock} | {
        f"DiffSpec, budget {n}": {**stock, **ON, "diffspec_token_budget": n} for n in budgets
    }
    live = {}
    for name, speculative in configs.items():
        console.log(f"starting {name}")
        live[name] = LiveArm(
            name,
            logs / f"{len(live)}.log",
            target=str(smollm2_folder(dtype=dtype)),
            speculative=speculative,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=2,
            enable_prefix_caching=True,
        )
    return live


def measure(
    live: Mapping[str, LiveArm], prompt: list[int], repeats: int, tokens: int
) -> dict[str, list[dict[str, Any]]]:
    """All arms on one prompt: every repeat."""

    def run(arm: LiveArm, recent_only: bool, repeat: int) -> dict[str, Any]:
        return arm.run([prompt], tokens, recent_only=recent_only)

    calls = {name: partial(run, arm, False) for name, arm in live.items()}
    for name, arm in live.items():
        if name not in (TARGET, STOCK):
            calls[name + WINDOW] = partial(run, arm, True)
    for arm in live.values():
        arm.run([prompt], 2)  # reads the prompt; what follows finds it in the prefix cache
    return alternate(calls, repeats, console.log)


def summary(per_prompt: Sequence[Runs]) -> dict[str, dict[str, Any]]:
    """Figures by arm; decode only, the first token excluded.

    ``over_…`` is the median over prompts and repeats of paired ratios of decode time,
    ``total_over_target_only`` the ratio of the times over all prompts (medians of the repeats).
    ``free_draft_over_target_only`` is what the ratio would be if proposing took no time.
    """

    def paired(over: str, under: str) -> float:
        pairs = [
            b["decode_s"] / a["decode_s"]
            for runs in per_prompt
            for a, b in zip(runs[over], runs[under], strict=True)
        ]
        return round(statistics.median(pairs), 3)

    def seconds(arm: str, free: bool = False) -> float:
        return sum(
            statistics.median(r["decode_s"] - (_proposing(r) if free else 0.0) for r in runs[arm])
            for runs in per_prompt
        )

    out = {}
    for arm in per_prompt[0]:
        every = [result for runs in per_prompt for result in runs[arm]]
        drafts = sum(r["drafts"] for r in every)
        answers = [
            result["tokens"] == runs[TARGET][0]["tokens"]
            for runs in per_prompt
            for result in runs[arm]
        ]
        tokens = sum(len(runs[arm][0]["tokens"][0]) - 1 for runs in per_prompt)
        length = 1 + sum(r["accepted"] for r in every) / drafts if drafts else None
        out[arm] = {
            "decode_tok_s": round(tokens / seconds(arm), 2),
            "over_target_only": paired(arm, TARGET),
            "over_stock": paired(arm, STOCK),
            "total_over_target_only": round(seconds(TARGET) / seconds(arm), 3),
            "free_draft_over_target_only": round(seconds(TARGET) / seconds(arm, free=True), 3),
            "acceptance_length": None if length is None else round(length, 3),
            "same_tokens": f"{sum(answers)}/{len(answers)}",
        }
    return out


def _proposing(result: Mapping[str, Any]) -> float:
    """Seconds a run spent on anything in the worker but verification."""
    split = result["split_ms_per_step"]
    return result["steps"] * sum(ms for part, ms in split.items() if part != "verify") / 1e3


def _show(cells: Sequence[Mapping[str, Any]]) -> None:
    table = Table(
        "prompt", "arm", "tok/s", "over target", "over stock", "in all", "draft free", "AL", "same"
    )
    for cell in cells:
        for arm, row in cell["summary"].items():
            table.add_row(str(cell["length"]), arm, *(str(value) for value in row.values()))
        table.add_section()
    Console(width=110).print(table)


def main() -> int:
    """Measure every length, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("evidence/prose.json"))
    parser.add_argument("--lengths", default="400,1500,7000")
    parser.add_argument("--budgets", default="512,1024")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    lengths = [int(n) for n in options.lengths.split(",")]
    budgets = [int(n) for n in options.budgets.split(",")]
    cells = []
    with tempfile.TemporaryDirectory() as name:
        longest = max(lengths) + options.tokens + MARGIN
        live = start_arms(budgets, options.depth, options.dtype, longest, Path(name))
        for length in lengths:
            per_prompt = []
            for i, prompt in enumerate(prompts_of(length, options.prompts, options.tokens)):
                console.log(f"{length} tokens, prompt {i + 1}/{options.prompts}")
                per_prompt.append(measure(live, prompt, options.repeats, options.tokens))
            figures = summary(per_prompt)
            for runs in per_prompt:
                for results in runs.values():
                    for result in results:
                        del result["tokens"]
            cells.append({"length": length, "summary": figures, "runs": per_prompt})
            result = {"what": "real text", "dtype": options.dtype, "depth": options.depth}
            write(options.out, {**result, "cells": cells})
        for arm in live.values():
            arm.close()
    _show(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
