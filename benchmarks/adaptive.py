# SPDX-License-Identifier: Apache-2.0
"""Adaptive depth against every fixed depth, inside one engine.

    python -m benchmarks.adaptive [--pair recall|smollm2] [--lengths 2048,8192,16384]
                                  [--batches 1,4] [--repeats 4] [--tokens 96]
                                  [--learn 1] [--out FILE]

Fixed depths 0, 1, 2, 3, 5, 7 are set on the policy's seat of a running engine, so every run shares
weights, pages and threads with every other, and repeats find their prompts in the prefix cache. The
best fixed depth is chosen on the even repeats and compared with adaptive depth on the odd ones, and
the other way round: choosing the luckiest of six and comparing on the same runs would flatter it.
SmolLM2 runs in bfloat16 where the machine multiplies it in hardware, else in float32.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.live import LiveArm, alternate
from benchmarks.prose import DATA, prompts_of
from benchmarks.record import write
from diffspec.cli.realtext import native_dtype
from diffspec.testbed.offline import ON, eagle3
from diffspec.testbed.recall_pair import build_recall_pair
from diffspec.testbed.recall_prompts import make_recall_prompt
from diffspec.testbed.smollm2 import smollm2_folder

FIXED, DEPTH = (0, 1, 2, 3, 5, 7), 7
ADAPTIVE = "adaptive"
VOCAB, PAD_LAYERS = 1024, 6
console = Console(stderr=True, width=110)

Runs = dict[str, list[dict[str, Any]]]


def fixed(depth: int) -> str:
    """The name of a fixed depth's arm."""
    return f"depth {depth}"


def measure(
    arm: LiveArm, prompts: Sequence[Sequence[int]], repeats: int, tokens: int, learn: int
) -> dict[str, Any]:
    """One cell: every repeat of adaptive and of every fixed depth on one batch, after ``learn``
    adaptive answers that are not counted."""

    def run(depth: int | None, repeat: int) -> dict[str, Any]:
        result = arm.run(prompts, tokens, depth=depth)
        texts.append(result.pop("tokens"))
        del result["split_ms_per_step"]
        return result

    texts: list[list[list[int]]] = []
    # The first runs read the prompts and let costs be learnt.
    for _ in range(learn):
        run(None, 0)
    run(0, 0)
    calls = {fixed(depth): partial(run, depth) for depth in FIXED}
    runs = alternate({ADAPTIVE: partial(run, None), **calls}, repeats, console.log)
    return {"runs": runs, "same_tokens": all(text == texts[0] for text in texts)}


def compare(runs: Runs) -> dict[str, Any]:
    """Adaptive over the fixed depth that was best on the other half of the repeats."""
    speeds = {name: [run["decode_tok_s"] for run in runs[name]] for name in runs}
    ratios, chosen = [], []
    for half in (0, 1):
        best = max(
            (name for name in runs if name != ADAPTIVE),
            key=lambda name: statistics.median(speeds[name][half::2]),
        )
        chosen.append(best)
        pairs = zip(speeds[ADAPTIVE][1 - half :: 2], speeds[best][1 - half :: 2], strict=True)
        ratios += [a / b for a, b in pairs]
    return {
        "best_fixed": chosen,
        "adaptive_over_best_fixed": round(statistics.median(ratios), 4),
        "median_tok_s": {name: round(statistics.median(v), 2) for name, v in speeds.items()},
    }


def overall(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all cells: geometric means of adaptive over each cell's best, and over every single
    fixed depth."""

    def mean(ratios: Sequence[float]) -> float:
        return round(math.exp(statistics.fmean(map(math.log, ratios))), 4)

    speeds = [cell["summary"]["median_tok_s"] for cell in cells]
    return {
        "over_best_fixed": mean([c["summary"]["adaptive_over_best_fixed"] for c in cells]),
        "worst_cell": min(c["summary"]["adaptive_over_best_fixed"] for c in cells),
        "over_single_fixed": {
            fixed(depth): mean([s[ADAPTIVE] / s[fixed(depth)] for s in speeds]) for depth in FIXED
        },
    }


def _pair(name: str, folder: Path) -> tuple[str, str, str]:
    """Target, draft and dtype."""
    if name == "recall":
        pair = build_recall_pair(folder, vocab=VOCAB, pad_layers=PAD_LAYERS)
        return str(pair.target), str(pair.draft), "float32"
    dtype = native_dtype()
    return str(smollm2_folder(dtype=dtype)), str(DATA / "smollm2-135m-eagle3"), dtype


def _prompts(name: str, length: int, count: int, tokens: int) -> list[list[int]]:
    if name == "recall":
        made = [make_recall_prompt(length, seed=10 + i, vocab=VOCAB) for i in range(count)]
        return [list(prompt.prompt_ids) for prompt in made]
    return prompts_of(length, count, tokens)


def main() -> int:
    """Measure every cell, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=("recall", "smollm2"), default="recall")
    parser.add_argument("--lengths", default="2048,8192,16384")
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--learn", type=int, default=1, help="adaptive answers before counting")
    parser.add_argument("--budget", type=int, default=None, help="diffspec_token_budget")
    parser.add_argument("--out", type=Path, default=Path("evidence/adaptive.json"))
    options = parser.parse_args()
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target, draft, dtype = _pair(options.pair, folder)
        keys = {} if options.budget is None else {"diffspec_token_budget": options.budget}
        for length in map(int, options.lengths.split(",")):
            for batch in map(int, options.batches.split(",")):
                arm = LiveArm(
                    f"{length}-{batch}",
                    folder / f"{length}-{batch}.log",
                    target=target,
                    speculative=eagle3(draft, DEPTH, **ON, **keys),
                    dtype=dtype,
                    max_model_len=length + options.tokens + 32,
                    max_num_seqs=batch,
                    enable_prefix_caching=True,
                )
                console.log(f"{options.pair}, {length} tokens, batch {batch}")
                prompts = _prompts(options.pair, length, batch, options.tokens)
                cell = measure(arm, prompts, options.repeats, options.tokens, options.learn)
                arm.close()
                cells.append(
                    {"pair": options.pair, "length": length, "batch": batch, **cell}
                    | {"summary": compare(cell["runs"])}
                )
                record = {"what": "adaptive depth against fixed depths", "dtype": dtype}
                write(options.out, {**record, "overall": overall(cells), "cells": cells})
    table = Table("prompt", "batch", "adaptive", *map(fixed, FIXED), "over best fixed")
    for cell in cells:
        summary = cell["summary"]
        speeds = (f"{summary['median_tok_s'][n]:.1f}" for n in (ADAPTIVE, *map(fixed, FIXED)))
        ratio = f"{summary['adaptive_over_best_fixed']:.3f}"
        table.add_row(str(cell["length"]), str(cell["batch"]), *speeds, ratio)
    Console(width=120).print(table, overall(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
