# SPDX-License-Identifier: Apache-2.0
"""The identity matrix: is DiffSpec's greedy output the target's own, and does retrieval matter?

    python -m benchmarks.matrix [--out evidence/identity.json]

On the recall pair the output must be equal token for token. On real text it may first differ only
where the target itself is undecided: its logits for the two candidates then differ by less than
1e-4 (float32) or by no more than one bfloat16 step at that size.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.arms import run_arm
from benchmarks.record import write
from diffspec.testbed.identity import compare
from diffspec.testbed.offline import ON, eagle3
from diffspec.testbed.recall_pair import build_recall_pair
from diffspec.testbed.recall_prompts import make_recall_prompt

DATA = Path(__file__).resolve().parents[1] / "data"
console = Console(stderr=True, width=120)


def recall_cells(lengths: Sequence[int], tokens: int) -> list[dict[str, Any]]:
    """All arms on the recall pair: single prompts, and a mixed batch of four."""
    with tempfile.TemporaryDirectory() as name:
        pairs = {}
        for limit in (32768, 2048):
            pairs[limit] = build_recall_pair(
                Path(name) / str(limit), draft_max_position_embeddings=limit
            )
        longest = max(lengths)
        prompts = [make_recall_prompt(n, seed=n) for n in lengths]
        mixed = [make_recall_prompt(n, seed=n + 1) for n in _mixed(longest)]
        batches = [[list(p.prompt_ids)] for p in prompts] + [[list(p.prompt_ids) for p in mixed]]
        truth = [[list(p.continuation_ids)[:tokens]] for p in prompts]
        truth.append([list(p.continuation_ids)[:tokens] for p in mixed])

        long, short = (eagle3(pairs[limit].draft, 5) for limit in (32768, 2048))
        arms: dict[str, tuple[dict[str, Any] | None, bool]] = {
            "target-only": (None, False),
            "stock EAGLE-3, 32K draft": (long, False),
            "stock EAGLE-3, 2K draft": (short, False),
            "DiffSpec, 32K draft": ({**long, **ON}, False),
            "DiffSpec, 2K draft": ({**short, **ON}, False),
            "DiffSpec, 2K draft, recent only": ({**short, **ON}, True),
        }
        names = [f"{n}" for n in lengths] + ["4 mixed: " + ", ".join(map(str, _mixed(longest)))]
        cells = []
        for arm, (speculative, recent_only) in arms.items():
            console.log(f"recall pair, float32: {arm}")
            results = run_arm(
                target=str(pairs[32768].target),
                speculative=speculative,
                batches=batches,
                tokens=tokens,
                recent_only=recent_only,
                dtype="float32",
                max_model_len=longest + tokens + 32,
                max_num_batched_tokens=2048,
            )
            for prompt, result, expected in zip(names, results, truth, strict=True):
                same = sum(a == b for a, b in zip(result["tokens"], expected, strict=True))
                cells.append(
                    _cell("recall pair, float32", arm, prompt, result)
                    | {"identical": same, "of": len(expected), "differences": []}
                )
    return cells


def _mixed(longest: int) -> list[int]:
    return [longest // 8, longest // 4, longest // 2, longest]


def text_cells(dtype: str, lengths: Sequence[int], tokens: int) -> list[dict[str, Any]]:
    """Target-only, stock and DiffSpec on held-out prose with SmolLM2 and its draft head."""
    from transformers import AutoTokenizer

    from diffspec.testbed.smollm2 import smollm2_folder

    target = smollm2_folder(dtype=dtype)
    play = (DATA / "plays" / "winters-tale.txt").read_text(encoding="utf-8")
    ids = AutoTokenizer.from_pretrained(target)(play)["input_ids"]
    longest = max(lengths)
    mixed = [longest // 10, longest // 4, longest // 2, longest - 500]
    batches = [[ids[start : start + n]] for start, n in enumerate(lengths)]
    batches.append([ids[9000 * i : 9000 * i + n] for i, n in enumerate(mixed)])
    names = [f"{n}" for n in lengths] + ["4 mixed: " + ", ".join(map(str, mixed))]
    stock = eagle3(DATA / "smollm2-135m-eagle3", 3)
    ours = {**stock, **ON, "diffspec_token_budget": 512}
    engine = {
        "target": str(target),
        "dtype": dtype,
        "max_model_len": 8192,
        "max_num_batched_tokens": 2048,
    }
    cells: list[dict[str, Any]] = []
    reference: list[dict[str, Any]] = []
    arms = {"target-only": None, "stock EAGLE-3": stock, "DiffSpec, budget 512": ours}
    for arm, speculative in arms.items():
        console.log(f"SmolLM2-135M, {dtype}: {arm}")
        # The target's own logits judge a difference.
        logits = {} if speculative else {"logprobs": 20, "logprobs_mode": "raw_logits"}
        results = run_arm(
            speculative=speculative, batches=batches, tokens=tokens, **engine, **logits
        )
        reference = reference or results
        for prompt, result, base in zip(names, results, reference, strict=True):
            tops = [[dict(at) for at in answer] for answer in base["logprobs"]]
            compared = map(
                compare, result["tokens"], base["tokens"], tops, [dtype] * len(result["tokens"])
            )
            found = [d for d in compared if d is not None]
            cells.append(
                _cell(f"SmolLM2-135M, {dtype}", arm, prompt, result)
                | {
                    "identical": len(result["tokens"]) - len(found),
                    "of": len(result["tokens"]),
                    "differences": [asdict(d) | {"tie": d.tie} for d in found],
                }
            )
    return cells


def _cell(model: str, arm: str, prompt: str, result: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "arm": arm,
        "prompt_tokens": prompt,
        "drafts": result["counters"]["drafts"],
        "acceptance_length": result["acceptance_length"],
        "per_position": result["per_position"],
        "retrievals": result["retrievals"],
    }


def _show(cells: Sequence[dict[str, Any]]) -> None:
    table = Table("model", "arm", "prompt", "identical", "AL", "accepted per position")
    for cell in cells:
        ties = sum(d["tie"] for d in cell["differences"])
        note = f" (+{ties} ties)" if ties else ""
        length = cell["acceptance_length"]
        table.add_row(
            cell["model"],
            cell["arm"],
            cell["prompt_tokens"],
            f"{cell['identical']}/{cell['of']}{note}",
            "-" if length is None else f"{length:.2f}",
            " ".join(f"{p:.3f}" for p in cell["per_position"]),
        )
    Console(width=120).print(table)


def _failures(cells: Sequence[dict[str, Any]]) -> list[str]:
    failures = []
    for cell in cells:
        where = f"{cell['model']}, {cell['arm']}, {cell['prompt_tokens']}"
        if cell["identical"] + sum(d["tie"] for d in cell["differences"]) < cell["of"]:
            failures.append(f"{where}: output differs from target-only")
        if not cell["model"].startswith("recall") or not cell["arm"].startswith("DiffSpec"):
            continue
        rates = cell["per_position"]
        if "recent" not in cell["arm"] and min(rates) < 0.95:
            failures.append(f"{where}: acceptance {min(rates):.3f} < 0.95")
        # Where the newest 2048 tokens do not reach back to the passage (at 30 % of the prompt).
        long = cell["prompt_tokens"].isdigit() and int(cell["prompt_tokens"]) >= 4096
        if "recent" in cell["arm"] and long and max(rates) > 0.05:
            failures.append(f"{where}: acceptance {max(rates):.3f} > 0.05 without retrieval")
    return failures


def main() -> int:
    """Run everything, print a table, write the record; 1 if anything fails to hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("evidence/identity.json"))
    parser.add_argument("--lengths", default="2048,8192,16384", help="recall prompts, tokens")
    parser.add_argument("--text-lengths", default="1500,4000,7000", help="prose prompts, tokens")
    parser.add_argument("--tokens", type=int, default=128, help="generated tokens")
    options = parser.parse_args()
    lengths = [int(n) for n in options.lengths.split(",")]
    text_lengths = [int(n) for n in options.text_lengths.split(",")]

    cells = recall_cells(lengths, options.tokens)
    for dtype in ("float32", "bfloat16"):
        cells += text_cells(dtype, text_lengths, options.tokens)
    _show(cells)
    failures = _failures(cells)
    write(options.out, {"what": "identity with target-only", "cells": cells, "failures": failures})
    for failure in failures:
        console.print(f"[red]FAILS[/red] {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
