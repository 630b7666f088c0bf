# SPDX-License-Identifier: Apache-2.0
"""The demo's results as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from diffspec.cli.arms import EAGLE3, Result
from diffspec.testbed.identity import first_difference

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


def table(table_rows: Sequence[dict[str, Any]], title: str, *, mark: bool = False) -> Table:
    """A rich table of :func:`rows`; ``mark`` stars stock rows without an accepted token."""
    out = Table(title=title, title_justify="left")
    for name in ("prompt", "arm", "same tokens", "acceptance length"):
        out.add_column(name, justify="left" if name == "arm" else "right", no_wrap=name == "arm")
    out.add_column("accepted at each position", no_wrap=True)
    for name in ("decode tok/s", "ratio", "first token"):
        out.add_column(name, justify="right")
    previous = None
    for row in table_rows:
        if previous not in (None, row["prompt_tokens"]):
            out.add_section()
        star = "*" if mark and row["arm"] == EAGLE3 and not row["accepted_tokens"] else ""
        shown = "" if previous == row["prompt_tokens"] else str(row["prompt_tokens"])
        out.add_row(shown, row["arm"] + star, *_cells(row))
        previous = row["prompt_tokens"]
    return out


def _cells(row: dict[str, Any]) -> list[str]:
    total, difference = row["generated_tokens"], row["first_difference"]
    if row["arm"] == row["reference"]:
        same = "—"
    else:
        same = f"{total}/{total}" if difference is None else f"differ at {difference}"
    length, ratio = row["acceptance_length"], row["ratio"]
    return [
        same,
        "—" if length is None else f"{length:.2f}",
        " ".join(f"{x:.2f}" for x in row["per_position_acceptance"]) or "—",
        f"{row['decode_tokens_per_s']:.1f}",
        "—" if ratio is None else f"{ratio:.2f}x",
        f"{row['time_to_first_token_s']:.2f} s",
    ]
