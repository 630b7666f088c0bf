# SPDX-License-Identifier: Apache-2.0
"""`diffspec demo`: the recall pair and a real text, served three ways.

The recall pair (`diffspec.testbed`) has a right answer: its target recites a passage of the prompt,
and its draft can only help where it sees that passage. Its draft is built for 2 048 positions.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

import diffspec
from diffspec.cli import realtext, report
from diffspec.cli.arms import TARGET_ONLY, Request, engine_flags, run_arms, three_arms
from diffspec.cli.client import RequestError
from diffspec.cli.progress import Reporter
from diffspec.cli.serving import ServerError

SEED = 7
VOCAB = 1024
# With the target's two working layers alone a draft step would cost a third of a target step.
PAD_LAYERS = 6
DRAFT_WINDOW = 2048
DEPTH = 5
PASSED, FAILED = 0, 1


@dataclass(frozen=True)
class Plan:
    """What a demo runs: prompt lengths and generated tokens on the recall pair, and on the text."""

    lengths: tuple[int, ...] = (2048, 8192, 16384)
    generate: int = 256
    text_generate: int = 192
    text_limit: int = realtext.CONTEXT
    text_target_only: bool = True


# Six starts of vLLM on two cores take most of four minutes; the text needs two of them to compare.
QUICK = Plan(
    lengths=(2048, 8192),
    generate=128,
    text_generate=96,
    text_limit=2400,
    text_target_only=False,
)


@dataclass
class Outcome:
    """The demo's results: JSON-ready sections, and what went wrong."""

    sections: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def recall_section(plan: Plan, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Build the recall pair under ``out``, serve it three ways, and return the JSON section."""
    reporter.begin("building the recall pair")
    from diffspec.testbed.recall_pair import build_recall_pair
    from diffspec.testbed.recall_prompts import make_recall_prompt

    pair = build_recall_pair(
        out / "recall",
        seed=SEED,
        vocab=VOCAB,
        pad_layers=PAD_LAYERS,
        draft_max_position_embeddings=DRAFT_WINDOW,
    )
    prompts = [make_recall_prompt(n, seed=SEED, vocab=VOCAB) for n in plan.lengths]
    requests = [Request(prompt.prompt_ids, plan.generate) for prompt in prompts]
    results = run_arms(
        three_arms(pair.draft, DEPTH),
        pair.target,
        engine_flags("float32", max(plan.lengths) + plan.generate + 16),
        requests,
        logs=out / "logs",
        reporter=reporter,
    )
    truth = [prompt.continuation_ids[: plan.generate] for prompt in prompts]
    said = [r.completion.token_ids for r in results if r.arm == TARGET_ONLY]
    return {
        "draft_window": DRAFT_WINDOW,
        "num_speculative_tokens": DEPTH,
        "target_recites_the_passage": said == truth,
        "rows": report.rows(results),
    }


def run_demo(plan: Plan, text: Path | None, out: Path, reporter: Reporter) -> Outcome:
    """Run both parts.

    Raises:
        TextError: the text cannot be used.
        ServerError, RequestError: a server failed.
    """
    outcome = Outcome()
    story = realtext.find_text(text)
    recall = outcome.sections["recall"] = recall_section(plan, out, reporter)
    if not recall["target_recites_the_passage"]:
        outcome.failures.append("target-only did not recite the passage: this build is broken")
    for row in recall["rows"]:
        if row["first_difference"] is not None:
            outcome.failures.append(
                f"{row['arm']} differs from target-only at token {row['first_difference']} "
                f"of the {row['prompt_tokens']}-token recall prompt"
            )
    outcome.sections["text"] = realtext.text_section(
        story,
        plan.text_generate,
        plan.text_limit,
        out,
        reporter,
        with_target_only=plan.text_target_only,
    )
    return outcome


def show(sections: dict[str, Any], console: Console) -> None:
    """Print the tables, the continuation and the notes."""
    recall, text = sections["recall"], sections["text"]
    note = report.placeholder_note(recall["rows"], recall["draft_window"])
    title = (
        f"Recall pair, k = {recall['num_speculative_tokens']}, "
        f"one draft built for {recall['draft_window']} positions"
    )
    console.print()
    console.print(report.table(recall["rows"], title, mark=note is not None))
    if note:
        console.print(note, markup=False)
    console.print()
    if "skipped" in text:
        console.print(f"Real text: skipped. {text['skipped']}", markup=False)
    else:
        realtext.show(text, console)
    console.print()
    console.print(report.ILLUSTRATION, markup=False)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def demo(quick: bool, text: Path | None, out: Path, as_json: bool) -> int:
    """The command; returns its exit status.

    Progress goes to standard error. Standard output gets the tables, or with ``as_json`` the
    content of ``out/demo-results.json`` and nothing else.
    """
    signal.signal(signal.SIGTERM, _stop)  # so that a server is ended with us
    begin = time.monotonic()
    with Reporter() as reporter:
        try:
            out.mkdir(parents=True, exist_ok=True)
            outcome = run_demo(QUICK if quick else Plan(), text, out, reporter)
        except (realtext.TextError, ServerError, RequestError, OSError) as error:
            reporter.note(f"diffspec demo: {error}")
            return FAILED
    document = {
        "diffspec": diffspec.__version__,
        "quick": quick,
        "note": report.ILLUSTRATION,
        "wall_s": round(time.monotonic() - begin, 1),
        "failures": outcome.failures,
        **outcome.sections,
    }
    rendered = json.dumps(document, indent=1, ensure_ascii=False)
    results = out / "demo-results.json"
    results.write_text(rendered + "\n", encoding="utf-8")
    if as_json:
        print(rendered)
    else:
        piped = None if sys.stdout.isatty() else 120
        show(document, Console(width=piped, highlight=False))
    for failure in outcome.failures:
        reporter.note(f"FAILED: {failure}")
    reporter.note(
        f"{document['wall_s']:.0f} s; results in {results}, server logs in {out / 'logs'}"
    )
    return FAILED if outcome.failures else PASSED
