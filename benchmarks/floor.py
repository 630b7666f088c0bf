# SPDX-License-Identifier: Apache-2.0
"""What DiffSpec costs where it cannot help: never slower than serving the target alone.

    python -m benchmarks.floor [--lengths 2048,8192,16384] [--batches 1,4] [--repeats 5]
                               [--tokens 192] [--only floor|turns] [--out FILE]

The recall pair's target (8 layers, float32) with a draft built from another seed, which is always
wrong. The floor is the same engine with a drafter that returns nothing and does nothing: what any
drafter pays for being there. Speeds leave out each request's first 64 tokens, in which the policy
learns that nothing is accepted. Then, with the right draft, a generation in whose middle every
draft is made wrong: when does drafting stop, and when does it go on?
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.live import START, LiveArm, alternate, paired_ratio
from benchmarks.record import write
from diffspec.testbed.ablation import HELD_AT_ZERO
from diffspec.testbed.recall_pair import build_recall_pair
from diffspec.testbed.recall_prompts import make_recall_prompt

VOCAB, PAD_LAYERS, DEPTH = 1024, 6, 5
TARGET, FLOOR, STOCK = "target-only", "floor: silent drafter", "stock EAGLE-3, wrong draft"
OURS, HELD = "DiffSpec, wrong draft", "DiffSpec, depth 0 forced"
#: Tokens after which drafts turn wrong, and right again.
TURNS = (150, 350)
console = Console(stderr=True, width=110)


def measure(
    length: int, batch: int, repeats: int, tokens: int, pairs: dict[str, Any], logs: Path
) -> dict[str, Any]:
    """One cell: every repeat of every arm."""
    wrong = {
        "method": "eagle3",
        "model": str(pairs["wrong"].draft),
        "num_speculative_tokens": DEPTH,
    }
    configs: dict[str, dict[str, Any]] = {
        TARGET: {"speculative": None},
        FLOOR: {
            "speculative": {**wrong, "disable_padded_drafter_batch": True},
            "silent_drafter": True,
        },
        OURS: {"speculative": {**wrong, "draft_context_policy": "diffspec"}},
        STOCK: {"speculative": wrong},
    }
    live = {}
    for name, config in configs.items():
        console.log(f"{length} tokens, batch {batch}: starting {name}")
        live[name] = LiveArm(
            name,
            logs / f"floor-{length}-{batch}-{len(live)}.log",
            target=str(pairs["right"].target),
            dtype="float32",
            max_model_len=length + tokens + 32,
            max_num_seqs=batch,
            enable_prefix_caching=True,
            **config,
        )
    made = [make_recall_prompt(length, seed=10 + i, vocab=VOCAB) for i in range(batch)]
    prompts = [list(prompt.prompt_ids) for prompt in made]
    truth = [list(prompt.continuation_ids)[:tokens] for prompt in made]

    def run(arm: LiveArm, depth: str | None, repeat: int) -> dict[str, Any]:
        result = arm.run(prompts, tokens, depth=depth)
        return result | {"identical": result.pop("tokens") == truth}

    for arm in live.values():
        arm.run(prompts, 2)  # reads the prompts; what follows finds them in the prefix cache
    calls = {name: partial(run, arm, None) for name, arm in live.items()}
    calls[HELD] = partial(run, live[OURS], HELD_AT_ZERO)
    runs = alternate(calls, repeats, console.log)
    for arm in live.values():
        arm.close()
    late = partial(paired_ratio, runs, what="late_tok_s")
    return {
        "length": length,
        "batch": batch,
        "runs": runs,
        "summary": {
            "held_over_floor": late(HELD, FLOOR),
            "wrong_over_floor": late(OURS, FLOOR),
            "wrong_over_target_only": late(OURS, TARGET),
            "floor_over_target_only": late(FLOOR, TARGET),
            "stock_over_target_only": late(STOCK, TARGET),
        },
    }


def turn(length: int, pair: Any, logs: Path) -> dict[str, Any]:
    """A generation whose drafts are wrong between :data:`TURNS`: tokens from each turn to the
    first step without drafts for good, and to the first with drafts again."""
    tokens = TURNS[1] + 150
    arm = LiveArm(
        "turn",
        logs / f"turn-{length}.log",
        target=str(pair.target),
        dtype="float32",
        max_model_len=length + tokens + 32,
        max_num_seqs=1,
        enable_prefix_caching=True,
        speculative={
            "method": "eagle3",
            "model": str(pair.draft),
            "num_speculative_tokens": DEPTH,
            "draft_context_policy": "diffspec",
        },
    )
    prompt = make_recall_prompt(length, seed=3, vocab=VOCAB)
    found = []
    for _ in range(3):
        result = arm.run([list(prompt.prompt_ids)], tokens, wrong_between=TURNS, trace=True)
        at, drafting = 0, []
        for sampled, drafted in result["trace"]:
            at += sampled
            drafting.append((at, drafted > 0))
        wrong = [a for a, on in drafting if on and TURNS[0] + DEPTH < a <= TURNS[1]]
        again = [a for a, on in drafting if on and a > TURNS[1]]
        found.append(
            {
                "identical": result["tokens"] == [list(prompt.continuation_ids)[:tokens]],
                "steps_that_drafted_while_wrong": len(wrong),
                "tokens_until_drafting_again": again[0] - TURNS[1] if again else None,
            }
        )
    arm.close()
    return {"length": length, "turns": TURNS, "repeats": found}


def main() -> int:
    """Measure every cell, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="2048,8192,16384")
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--out", type=Path, default=Path("evidence/floor.json"))
    parser.add_argument("--only", choices=("floor", "turns"), help="leave the other part out")
    options = parser.parse_args()
    lengths = list(map(int, options.lengths.split(",")))
    cells, turns = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = {
            which: build_recall_pair(folder / which, vocab=VOCAB, pad_layers=PAD_LAYERS, seed=seed)
            for which, seed in (("right", 0), ("wrong", 1))
        }

        def save() -> None:
            record = {"what": "never slower", "tokens_left_out": START}
            write(options.out, {**record, "cells": cells, "turns": turns})

        for length in [] if options.only == "turns" else lengths:
            for batch in map(int, options.batches.split(",")):
                arguments = (options.repeats, options.tokens, pairs, folder / "logs")
                cells.append(measure(length, batch, *arguments))
                save()
        for length in [] if options.only == "floor" else lengths:
            turns.append(turn(length, pairs["right"], folder / "logs"))
            save()
    table = Table("prompt", "batch", *(cells[0]["summary"] if cells else ()))
    for cell in cells:
        ratios = (f"{ratio:.3f}" for ratio in cell["summary"].values())
        table.add_row(str(cell["length"]), str(cell["batch"]), *ratios)
    Console(width=140).print(table, turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
