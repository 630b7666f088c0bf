# SPDX-License-Identifier: Apache-2.0
"""What DiffSpec costs where it cannot help: never slower than serving the target alone.

    python -m benchmarks.floor [--lengths 2048,8192,16384] [--batches 1,4] [--starts 2]
                               [--repeats 3] [--spans 8] [--only floor|turns] [--out FILE]

The recall pair's target (8 layers, float32) with a draft built from another seed, which is always
wrong. The floor is the same engine with a drafter that returns nothing and does nothing: what any
drafter pays for being there. All arms answer by turns, four tokens of a request each; the first 64,
in which the policy learns that nothing is accepted, are left out. Stock EAGLE-3, far slower, takes
part in one repeat of every start. Then, with the right draft, a generation in whose middle every
draft is made wrong: when does drafting stop, and when does it go on?
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.live import LiveArm
from benchmarks.record import write
from benchmarks.relay import paired_spans, relay, speed
from diffspec.testbed.ablation import HELD_AT_ZERO
from diffspec.testbed.offline import ON, eagle3
from diffspec.testbed.recall_pair import build_recall_pair
from diffspec.testbed.recall_prompts import make_recall_prompt

VOCAB, PAD_LAYERS, DEPTH = 1024, 6, 5
#: Tokens of each request that are left out, those of a turn, and those that make a span.
START, TURN, SPAN = 64, 4, 32
TARGET, FLOOR, STOCK = "target-only", "floor: silent drafter", "stock EAGLE-3, wrong draft"
OURS, HELD = "DiffSpec, wrong draft", "DiffSpec, depth 0 forced"
#: Tokens after which drafts turn wrong, and right again.
TURNS = (150, 350)
console = Console(stderr=True, width=110)


def recall_pairs(folder: Path) -> dict[str, Any]:
    """The pair whose draft is ``right`` and the one whose draft, of another seed, is ``wrong``."""
    return {
        which: build_recall_pair(folder / which, vocab=VOCAB, pad_layers=PAD_LAYERS, seed=seed)
        for which, seed in (("right", 0), ("wrong", 1))
    }


def recall_prompts(length: int, batch: int, tokens: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts, and the first ``tokens`` tokens of their right answers."""
    made = [make_recall_prompt(length, seed=10 + i, vocab=VOCAB) for i in range(batch)]
    prompts = [list(prompt.prompt_ids) for prompt in made]
    return prompts, [list(prompt.continuation_ids)[:tokens] for prompt in made]


def start_arms(
    length: int, batch: int, tokens: int, pairs: dict[str, Any], logs: Path
) -> dict[str, LiveArm]:
    """An engine for every arm."""
    wrong = eagle3(pairs["wrong"].draft, DEPTH)
    ours = {"speculative": {**wrong, **ON}}
    configs: dict[str, dict[str, Any]] = {
        TARGET: {"speculative": None},
        FLOOR: {
            "speculative": {**wrong, "disable_padded_drafter_batch": True},
            "silent_drafter": True,
        },
        OURS: ours,
        HELD: ours,
        STOCK: {"speculative": wrong},
    }
    return {
        name: LiveArm(
            name,
            logs / f"floor-{length}-{batch}-{i}.log",
            target=str(pairs["right"].target),
            dtype="float32",
            max_model_len=length + tokens + 32,
            max_num_seqs=batch,
            enable_prefix_caching=True,
            **config,
        )
        for i, (name, config) in enumerate(configs.items())
    }


def measure(
    length: int, batch: int, options: argparse.Namespace, pairs: dict[str, Any], logs: Path
) -> dict[str, Any]:
    """One cell: every repeat of every start of every arm."""
    tokens = START + SPAN * options.spans + SPAN // 2
    prompts, truth = recall_prompts(length, batch, tokens)
    runs: dict[str, list[dict[str, Any]]] = {}
    for start in range(options.starts):
        console.log(f"{length} tokens, batch {batch}: start {start + 1}/{options.starts}")
        arms = start_arms(length, batch, tokens, pairs, logs)
        for arm in arms.values():
            arm.run(prompts, 2)  # reads the prompts; what follows finds them in the prefix cache
        for repeat in range(options.repeats):
            going = {
                name: arm.turns(
                    prompts,
                    tokens,
                    start=START,
                    turn=TURN,
                    span=SPAN,
                    depth=HELD_AT_ZERO if name == HELD else None,
                )
                for name, arm in arms.items()
                if name != STOCK or repeat == 0
            }
            answers = relay(going, seed=start * options.repeats + repeat)
            for name, answer in answers.items():
                answer |= {"at": (start, repeat), "identical": answer.pop("tokens") == truth}
                runs.setdefault(name, []).append(answer)
            speeds = ", ".join(f"{name} {speed(a):.1f}" for name, a in sorted(answers.items()))
            console.log(f"  {repeat + 1}/{options.repeats}, tok/s: {speeds}")
        for arm in arms.values():
            arm.close()
    return {"length": length, "batch": batch, "runs": runs, "summary": summary(runs)}


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float | None]:
    """The ratios that have a bar, and those that explain them."""
    return {
        "held_over_floor": paired_spans(runs, HELD, FLOOR),
        "wrong_over_floor": paired_spans(runs, OURS, FLOOR),
        "wrong_over_target_only": paired_spans(runs, OURS, TARGET),
        "floor_over_target_only": paired_spans(runs, FLOOR, TARGET),
        "stock_over_target_only": paired_spans(runs, STOCK, TARGET),
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
        speculative=eagle3(pair.draft, DEPTH, **ON),
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
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="answers of every start")
    parser.add_argument("--spans", type=int, default=8, help="of every answer, that count")
    parser.add_argument("--out", type=Path, default=Path("evidence/floor.json"))
    parser.add_argument("--only", choices=("floor", "turns"), help="leave the other part out")
    options = parser.parse_args()
    lengths = list(map(int, options.lengths.split(",")))
    cells, turns = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = recall_pairs(folder)

        def save() -> None:
            record = {"what": "never slower", "tokens_left_out": START}
            record |= {"tokens_a_turn": TURN, "tokens_a_span": SPAN}
            write(options.out, {**record, "cells": cells, "turns": turns})

        for length in [] if options.only == "turns" else lengths:
            for batch in map(int, options.batches.split(",")):
                cells.append(measure(length, batch, options, pairs, folder / "logs"))
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
