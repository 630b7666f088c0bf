# SPDX-License-Identifier: Apache-2.0
"""What DiffSpec costs where it cannot help, over a drafter that does nothing, in one engine.

    python -m benchmarks.enabled [--lengths 2048,8192,16384] [--batches 1,4] [--answers 8]
                                 [--out FILE]

Engines that are the same in everything run some per cent faster or slower than each other for as
long as they live. So here both sides run in one, by turns of eight tokens within one answer: the
recall pair's target (8 layers, float32) with a draft built from another seed, which is always
wrong. In the floor's turns DiffSpec is out, query tap included, and the host's own drafter returns
nothing and does nothing; rows are kept for DiffSpec, and its clock stands still. Once depth 0 is
forced on the policy (merely enabled), once it finds out for itself, in the first 64 tokens, which
are left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.floor import DEPTH, START, recall_pairs, recall_prompts
from benchmarks.live import LiveArm
from benchmarks.record import write
from benchmarks.relay import interval
from diffspec.testbed.ablation import HELD_AT_ZERO
from diffspec.testbed.offline import ON, eagle3

#: Tokens of each request in a turn, and whether turns are silent, over and over: a machine that
#: gets slower all the time favours nobody.
TURN, SILENT = 8, (True, False, False, True)
#: Turns that make a pair of sums: few, as a burst of another load spoils a pair, but enough for
#: most to have a secret draft in them.
GROUP = 16
TOKENS = START + 4 * GROUP * TURN + TURN
console = Console(stderr=True, width=110)


def paired(spans: Sequence[Sequence[float]]) -> Iterator[float]:
    """Speed while enabled over speed in silence, of every full group of turns; ``spans`` are
    tokens and seconds, first those of the start."""
    turns = spans[1:]
    for begin in range(0, len(turns) - GROUP + 1, GROUP):
        rates = {}
        for silent in (True, False):
            chosen = [turns[begin + i] for i in range(GROUP) if SILENT[i % len(SILENT)] == silent]
            rates[silent] = sum(n for n, _ in chosen) / sum(seconds for _, seconds in chosen)
        yield rates[False] / rates[True]


def measure(
    length: int, batch: int, options: argparse.Namespace, pairs: dict[str, Any], log: Path
) -> dict[str, Any]:
    """One cell."""
    prompts, truth = recall_prompts(length, batch, TOKENS)
    arm = LiveArm(
        "enabled",
        log,
        target=str(pairs["right"].target),
        dtype="float32",
        max_model_len=length + TOKENS + 32,
        max_num_seqs=batch,
        enable_prefix_caching=True,
        speculative=eagle3(pairs["wrong"].draft, DEPTH, **ON),
    )
    arm.run(prompts, 2)  # reads the prompts; what follows finds them in the prefix cache
    identical, ratios = True, {"held": [], "wrong": []}  # type: ignore[var-annotated]
    arm.run(prompts, TOKENS)  # learns what steps cost
    hooks = {"start": START, "turn": TURN, "span": TURN, "silence": list(SILENT)}
    for number in range(options.answers):
        for name, depth in (("held", HELD_AT_ZERO), ("wrong", None)):
            answer = arm.run(prompts, TOKENS, depth=depth, **hooks)
            identical &= answer["tokens"] == truth
            ratios[name] += paired(answer["spans"])
        latest = ", ".join(f"{name} {found[-1]:.3f}" for name, found in ratios.items())
        console.log(f"  {number + 1}/{options.answers}: {latest}")
    arm.close()
    cell = {"length": length, "batch": batch, "identical": identical, "faults": answer["faults"]}
    return cell | {f"{name}_over_floor": summary(found) for name, found in ratios.items()}


def summary(ratios: Sequence[float]) -> dict[str, Any]:
    """The ratios, their median, and between what it lies."""
    return {
        "median": round(statistics.median(ratios), 4),
        "mean": round(statistics.fmean(ratios), 4),
        "interval": [round(end, 4) for end in interval(ratios)],
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def main() -> int:
    """Measure every cell, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="2048,8192,16384")
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--answers", type=int, default=8, help="of each kind")
    parser.add_argument("--out", type=Path, default=Path("evidence/enabled.json"))
    options = parser.parse_args()
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = recall_pairs(folder)
        for length in map(int, options.lengths.split(",")):
            for batch in map(int, options.batches.split(",")):
                console.log(f"{length} tokens, batch {batch}")
                log = folder / f"{length}-{batch}.log"
                cells.append(measure(length, batch, options, pairs, log))
                write(options.out, {"what": "what being enabled costs", "cells": cells})
    table = Table("prompt", "batch", "depth 0 forced over floor", "wrong draft over floor")
    for cell in cells:
        found = (cell[what] for what in ("held_over_floor", "wrong_over_floor"))
        words = (f"{f['median']:.3f} {f['interval']}" for f in found)
        table.add_row(str(cell["length"]), str(cell["batch"]), *words)
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
