# SPDX-License-Identifier: Apache-2.0
"""The demo's results as one picture. matplotlib is optional and loaded only to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffspec.cli import report
from diffspec.cli.arms import DIFFSPEC, EAGLE3, EAGLE3_LONG, TARGET_ONLY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by most colour-blind readers; one colour per arm throughout.
COLOURS = {
    TARGET_ONLY: "#999999",
    EAGLE3_LONG: "#56B4E9",
    EAGLE3: "#0072B2",
    DIFFSPEC: "#D55E00",
}
WIDTH = 0.8
DPI = 130


def write_picture(document: Mapping[str, Any], path: Path) -> None:
    """Write :func:`draw`'s figure of a demo's results to ``path`` as PNG.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: ``path`` cannot be written.
    """
    draw(document).savefig(path, format="png", dpi=DPI)


def draw(document: Mapping[str, Any]) -> Figure:
    """Decode tokens/s by prompt length, a bar per arm: recall pair left, text right if it ran.

    Args:
        document: the content of ``demo-results.json``.

    Raises:
        ImportError: matplotlib is not installed.
    """
    # Without pyplot there is no global state, and no display is looked for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    recall, text = document["recall"], document["text"]
    panels = [(recall["rows"], report.recall_title(recall))]
    if "rows" in text:
        panels.append((text["rows"], report.text_title(text)))
    figure = Figure(figsize=(7 * len(panels), 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (rows, title) in enumerate(panels, start=1):
        _bars(figure.add_subplot(1, len(panels), place), rows, title)
    failed = "; THE RUN FAILED, see demo-results.json" if document["failures"] else ""
    figure.suptitle(
        f"diffspec demo: an illustration, not a benchmark{failed}\n"
        "Decode speed by prompt length; the number over a bar is its acceptance length",
        fontsize=11,
    )
    software = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    figure.supxlabel(
        f"{document['machine']}; {software}\n"
        f"diffspec {document['diffspec']}; one run per bar, one request at a time over HTTP",
        fontsize="small",
    )
    return figure


def _bars(axes: Axes, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    lengths = sorted({row["prompt_tokens"] for row in rows})
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    width = WIDTH / len(arms)
    for i, arm in enumerate(arms):
        mine = [row for row in rows if row["arm"] == arm]
        shift = (i - (len(arms) - 1) / 2) * width
        bars = axes.bar(
            [lengths.index(row["prompt_tokens"]) + shift for row in mine],
            [row["decode_tokens_per_s"] for row in mine],
            width,
            label=arm,
            color=COLOURS[arm],
        )
        drafted = [row["acceptance_length"] for row in mine]
        labels = ["" if length is None else f"{length:.2f}" for length in drafted]
        axes.bar_label(bars, labels, fontsize="x-small", padding=2)
    axes.set_xticks(range(len(lengths)), [f"{n:,}".replace(",", " ") for n in lengths])
    axes.set_xlim(-0.8, len(lengths) - 0.2)
    axes.set_xlabel("prompt (tokens)")
    axes.set_ylabel("decode speed (tokens/s)")
    axes.set_title(title, fontsize="medium")
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small")
