# SPDX-License-Identifier: Apache-2.0
"""The demo's results as a table and as JSON, and the words around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from diffspec.cli.arms import EAGLE3, Result
from diffspec.testbed.identity import first_difference

WIDE = 120
ILLUSTRATION = (
    "Same tokens and ratio are against a table's first arm. "
    "Illustration, not a benchmark: one run per cell, one request at a time through HTTP, "
    "on whatever else this machine was doing."
)


def rows(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One JSON-ready object per result, compared with the first arm's answer to the same request.

    ``first_difference`` and ``ratio`` (of decode tokens/s) are against ``reference``, the first
    arm; ``acceptance_length`` is null where nothing was drafted.
    """
    results = list(results)
    first = results[0].arm
    reference = {id(r.request): r.completion for r in results if r.arm == first}
    out = []
    for result in sorted(results, key=lambda r: len(r.request.prompt)):
        done, base = result.completion, reference[id(result.request)]
        counters = done.counters
        speed = base.decode_tok_s
        out.append(
            {
                "arm": result.arm,
                "prompt_tokens": len(result.request.prompt),
                "generated_tokens": len(done.token_ids),
                "first_difference": first_difference(done.token_ids, base.token_ids),
                "acceptance_length": counters.acceptance_length,
                "per_position_acceptance": list(counters.per_position),
                "drafts": counters.drafts,
                "draft_tokens": counters.draft_tokens,
                "accepted_tokens": counters.accepted,
                "decode_tokens_per_s": done.decode_tok_s,
                "reference": first,
                "ratio": done.decode_tok_s / speed if speed else None,
                "time_to_first_token_s": done.ttft_s,
            }
        )
    return out


def placeholder_note(table_rows: Iterable[dict[str, Any]], window: int) -> str | None:
    """What stock rows without a single accepted token past the draft's ``window`` mean, if any."""
    for row in table_rows:
        past = row["prompt_tokens"] + row["generated_tokens"] > window
        if row["arm"] == EAGLE3 and row["drafts"] and not row["accepted_tokens"] and past:
            return (
                f"* The draft's configuration says {window} positions. Past them vLLM 0.28 does "
                "not run the draft but submits placeholder tokens, which count as drafted and are "
                "all rejected: the output stays right, and nothing is logged."
            )
    return None


def recall_title(section: Mapping[str, Any]) -> str:
    """What the recall pair's panel and table show: the depth and the drafts."""
    long = section["long_draft_window"]
    return (
        f"Recall pair, k = {section['num_speculative_tokens']}, "
        f"draft built for {section['draft_window']} positions"
        + (f" (40K draft: {long})" if long else "")
    )


def text_title(section: Mapping[str, Any]) -> str:
    """What the text's panel and table show: the model, its number format, the depth, the head."""
    return (
        f"SmolLM2-135M-Instruct, {section['dtype']}, k = {section['num_speculative_tokens']}, "
        "head trained on 512 tokens"
    )


def table(
    table_rows: Sequence[dict[str, Any]], title: str, *, width: int, mark: bool = False
) -> Table:
    """A rich table of :func:`rows`; ``mark`` stars stock rows without an accepted token.

    Where ``width`` (in characters) is too small for it, acceptance per position is left out.
    """
    wide = width >= WIDE
    reference = table_rows[0]["reference"] if table_rows else ""
    out = Table(title=f"{title} (illustration)", title_justify="left")
    for name in ("prompt", "arm", "same\ntokens", "acceptance\nlength"):
        out.add_column(name, justify="left" if name == "arm" else "right")
    if wide:
        out.add_column("accepted per position", no_wrap=True)
    for name in ("decode\ntok/s", f"ratio to\n{reference}", "first\ntoken"):
        out.add_column(name, justify="right")
    previous = None
    for row in table_rows:
        if previous not in (None, row["prompt_tokens"]):
            out.add_section()
        star = "*" if mark and row["arm"] == EAGLE3 and not row["accepted_tokens"] else ""
        shown = "" if previous == row["prompt_tokens"] else str(row["prompt_tokens"])
        out.add_row(shown, row["arm"] + star, *_cells(row, wide))
        previous = row["prompt_tokens"]
    return out


def _cells(row: dict[str, Any], wide: bool) -> list[str]:
    total, difference = row["generated_tokens"], row["first_difference"]
    if row["arm"] == row["reference"]:
        same = "—"
    else:
        same = f"{total}/{total}" if difference is None else f"differ at {difference}"
    length, ratio = row["acceptance_length"], row["ratio"]
    positions = " ".join(f"{round(x, 2):g}" for x in row["per_position_acceptance"])
    return [
        same,
        "—" if length is None else f"{length:.2f}",
        *([positions or "—"] if wide else []),
        f"{row['decode_tokens_per_s']:.1f}",
        "—" if ratio is None else f"{ratio:.2f}x",
        f"{row['time_to_first_token_s']:.2f} s",
    ]
