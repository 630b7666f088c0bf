# SPDX-License-Identifier: Apache-2.0
"""How close DiffSpec comes to a draft that is free and always right, in the same engine.

    python -m benchmarks.ceiling [--lengths 16384] [--depths 3,5,7] [--starts 3] [--repeats 2]
                                 [--fresh 5] [--arms all] [--out FILE]

On the recall pair (8 target layers, float32) vLLM's own prompt lookup is always right and costs
next to nothing: the ceiling of any proposer there. All arms stay up, runs alternate, the order
turns from repeat to repeat, ratios are taken within a repeat and their median is reported. A
process keeps for its life where its memory lies, and with it a few per cent of its speed; so a
cell can be measured over several starts of all its engines, whose repeats are pooled.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.live import LiveArm, alternate, paired_ratio
from benchmarks.record import write
from diffspec.testbed.offline import ON, eagle3
from diffspec.testbed.recall_pair import build_recall_pair
from diffspec.testbed.recall_prompts import make_recall_prompt

VOCAB, PAD_LAYERS = 1024, 6
TARGET, LOOKUP = "target-only", "prompt lookup"
STOCK, STOCK_2K = "stock EAGLE-3 (40K draft)", "stock EAGLE-3 (2K draft)"
OURS = "DiffSpec (2K draft)"
#: The pair recites prompts up to this many tokens, the answer included.
LONGEST = 32768
console = Console(stderr=True, width=110)


def arms_for(depth: int, good: str, short: str) -> dict[str, dict[str, Any] | None]:
    """Speculative configurations by arm; DiffSpec gets the draft built for 2K."""
    lookup = {"prompt_lookup_min": 4, "prompt_lookup_max": 5}
    return {
        TARGET: None,
        LOOKUP: {"method": "ngram", "num_speculative_tokens": depth, **lookup},
        STOCK: eagle3(good, depth),
        STOCK_2K: eagle3(short, depth),
        OURS: eagle3(short, depth, **ON),
    }


def measure(
    length: int,
    depth: int,
    repeats: int,
    fresh: int,
    tokens: int,
    names: Sequence[str],
    folder: Path,
    start: int = 0,
) -> dict[str, Any]:
    """One start of a cell's engines: every repeat of every arm, and of ``fresh`` unseen prompts."""
    length = min(length, LONGEST - tokens - 32)
    pairs = {
        limit: build_recall_pair(
            folder / str(limit),
            vocab=VOCAB,
            pad_layers=PAD_LAYERS,
            draft_max_position_embeddings=limit,
        )
        for limit in (40960, 2048)
    }
    configs = arms_for(depth, str(pairs[40960].draft), str(pairs[2048].draft))
    live = []
    for name in names:
        console.log(f"{length} tokens, k={depth}, start {start + 1}: starting {name}")
        live.append(
            LiveArm(
                name,
                folder / "logs" / f"{length}-{depth}-{start}-{len(live)}.log",
                target=str(pairs[40960].target),
                speculative=configs[name],
                dtype="float32",
                max_model_len=length + tokens + 32,
                max_num_seqs=2,
                enable_prefix_caching=True,
            )
        )
    prompt = make_recall_prompt(length, seed=depth, vocab=VOCAB)
    truth = list(prompt.continuation_ids)[:tokens]
    for arm in live:
        # The first run reads the prompt; repeats find it in the prefix cache and only decode.
        arm.run([list(prompt.prompt_ids)], tokens)

    def run(arm: LiveArm, repeat: int) -> dict[str, Any]:
        result = arm.run([list(prompt.prompt_ids)], tokens)
        result["identical"] = result.pop("tokens") == [truth]
        return {"start": start, **result}

    def read(arm: LiveArm, repeat: int) -> dict[str, Any]:
        unseen = make_recall_prompt(length, seed=1000 + repeat, vocab=VOCAB)
        result = arm.run([list(unseen.prompt_ids)], 2)
        return {"start": start, **{key: result[key] for key in ("ttft_s", "decode_tok_s")}}

    def by_turns(
        call: Callable[..., dict[str, Any]], times: int
    ) -> dict[str, list[dict[str, Any]]]:
        first = start * times
        return alternate({arm.name: partial(call, arm) for arm in live}, times, console.log, first)

    runs, reads = by_turns(run, repeats), by_turns(read, fresh)
    for arm in live:
        arm.close()
    load = [round(x, 2) for x in os.getloadavg()]
    return {
        "length": length,
        "depth": depth,
        "load_averages_at_end": load,
        "runs": runs,
        "fresh_prompts": reads,
    }


def pool(starts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One cell of all its starts: the repeats of an arm in one list."""
    cell = dict(starts[0])
    cell["load_averages_at_end"] = [start["load_averages_at_end"] for start in starts]
    for what in ("runs", "fresh_prompts"):
        cell[what] = {
            name: [run for start in starts for run in start[what][name]] for name in cell[what]
        }
    return cell


def by_start(runs: dict[str, list[dict[str, Any]]], over: str, under: str) -> list[float | None]:
    """:func:`~benchmarks.live.paired_ratio` of each start alone: how far starts differ."""
    starts = sorted({run["start"] for name in runs for run in runs[name]})
    chosen = [
        {name: [run for run in runs[name] if run["start"] == start] for name in runs}
        for start in starts
    ]
    return [paired_ratio(one, over, under) for one in chosen]


def summary(cell: dict[str, Any]) -> dict[str, Any]:
    """The figures a cell is judged by."""
    return {
        "share_of_ceiling": paired_ratio(cell["runs"], OURS, LOOKUP),
        "share_of_ceiling_by_start": by_start(cell["runs"], OURS, LOOKUP),
        "over_target_only": paired_ratio(cell["runs"], OURS, TARGET),
        "ceiling_over_target_only": paired_ratio(cell["runs"], LOOKUP, TARGET),
        "over_stock": paired_ratio(cell["runs"], OURS, STOCK),
        "over_stock_by_start": by_start(cell["runs"], OURS, STOCK),
        "over_stock_2k_draft": paired_ratio(cell["runs"], OURS, STOCK_2K),
        "ttft_over_target_only": {
            name: paired_ratio(cell["fresh_prompts"], name, TARGET, "ttft_s")
            for name in cell["fresh_prompts"]
            if name != TARGET
        },
        "split_ms_per_step": {name: _split(runs) for name, runs in cell["runs"].items()},
    }


def _split(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Median over repeats of each part of a decode step, ms."""
    splits = [run["split_ms_per_step"] for run in runs]
    parts = sorted({part for split in splits for part in split})
    return {
        part: round(statistics.median(split.get(part, 0.0) for split in splits), 3)
        for part in parts
    }


def failures(cell: dict[str, Any]) -> list[str]:
    """What makes a cell void: wrong tokens, a ceiling that is none, faults."""
    found = []
    for name, runs in cell["runs"].items():
        if not all(run["identical"] for run in runs):
            found.append(f"{name}: not the passage")
        if any(run.get("faults") for run in runs):
            found.append(f"{name}: faults while serving")
    full = cell["depth"] + 1
    if any(run["acceptance_length"] < full for run in cell["runs"].get(LOOKUP, [])):
        found.append(f"{LOOKUP}: not always right")
    return found


def _show(cells: Sequence[dict[str, Any]]) -> None:
    table = Table("prompt", "k", "arm", "tok/s (median)", "identical", "AL", "TTFT s")
    for cell in cells:
        for name, runs in cell["runs"].items():
            length = runs[0]["acceptance_length"]
            reads = cell["fresh_prompts"][name]
            table.add_row(
                str(cell["length"]),
                str(cell["depth"]),
                name,
                f"{statistics.median(run['decode_tok_s'] for run in runs):.1f}",
                f"{sum(run['identical'] for run in runs)}/{len(runs)}",
                "-" if length is None else f"{length:.2f}",
                f"{statistics.median(r['ttft_s'] for r in reads):.2f}" if reads else "-",
            )
    printer = Console(width=110)
    printer.print(table)
    for cell in cells:
        printer.print(f"{cell['length']} tokens, k={cell['depth']}:", cell["summary"])


def main() -> int:
    """Measure every cell, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("evidence/ceiling.json"))
    parser.add_argument("--lengths", default="16384")
    parser.add_argument("--depths", default="3,5,7")
    parser.add_argument("--starts", type=int, default=1, help="of all engines of a cell")
    parser.add_argument("--repeats", type=int, default=5, help="of every arm in a start")
    parser.add_argument("--fresh", type=int, default=0, help="repeats of unseen prompts")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--arms", default=",".join((TARGET, LOOKUP, OURS)), help="; all: 'all'")
    options = parser.parse_args()
    names = options.arms.split(",")
    if options.arms == "all":
        names = [TARGET, LOOKUP, STOCK, STOCK_2K, OURS]
    cells = []
    with tempfile.TemporaryDirectory() as name:
        for length in map(int, options.lengths.split(",")):
            for depth in map(int, options.depths.split(",")):
                arguments = (options.repeats, options.fresh, options.tokens, names, Path(name))
                cell = pool(
                    [measure(length, depth, *arguments, start) for start in range(options.starts)]
                )
                cells.append(cell | {"summary": summary(cell), "failures": failures(cell)})
                # After every cell, so that a later one that fails loses nothing.
                write(options.out, {"what": "decode speed against a free draft", "cells": cells})
    _show(cells)
    return int(any(cell["failures"] for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
