# SPDX-License-Identifier: Apache-2.0
"""`diffspec demo`: the recall pair and a real text, served with and without DiffSpec.

The recall pair (`diffspec.testbed`) has a right answer: its target recites a passage of the prompt,
and its draft can only help where it sees that passage. Its draft is built for 2 048 positions; the
full form also gives stock EAGLE-3 the same draft built for every length here.
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
from diffspec.cli import picture, realtext, report
from diffspec.cli.arms import (
    LONG_WINDOW,
    TARGET_ONLY,
    Request,
    engine_flags,
    four_arms,
    run_arms,
    three_arms,
)
from diffspec.cli.client import RequestError
from diffspec.cli.machine import machine, versions
from diffspec.cli.progress import Reporter
from diffspec.cli.serving import ServerError

SEED = 7
VOCAB = 1024
# With the target's two working layers alone a draft step would cost a third of a target step.
PAD_LAYERS = 6
DRAFT_WINDOW = 2048
DEPTH = 5
RESULTS, PICTURE = "demo-results.json", "demo.png"
PASSED, FAILED = 0, 1


@dataclass(frozen=True)
class Plan:
    """What a demo runs: prompt lengths and generated tokens on the recall pair and on the text,
    and which arms are added to the ones that every demo has."""

    lengths: tuple[int, ...] = (2048, 8192, 16384)
    generate: int = 256
    long_draft: bool = True
    text_lengths: tuple[int, ...] = (1500, 4000, 7000)
    text_generate: int = 48
    text_target_only: bool = True


# The starts of vLLM take most of the time on two cores, so the quick form has two arms fewer.
QUICK = Plan(
    lengths=(2048, 8192),
    generate=128,
    long_draft=False,
    text_generate=96,
    text_lengths=(2178,),  # the scene the text ends in, from its beginning
    text_target_only=False,
)


@dataclass
class Outcome:
    """The demo's results: JSON-ready sections, and what went wrong."""

    sections: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def recall_section(plan: Plan, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Build the recall pair under ``out``, serve the plan's arms, and return the JSON section."""
    reporter.begin("building the recall pair")
    from diffspec.testbed.recall_pair import RecallPair, build_recall_pair
    from diffspec.testbed.recall_prompts import make_recall_prompt

    def build(folder: str, window: int) -> RecallPair:
        return build_recall_pair(
            out / folder,
            seed=SEED,
            vocab=VOCAB,
            pad_layers=PAD_LAYERS,
            draft_max_position_embeddings=window,
        )

    pair = build("recall", DRAFT_WINDOW)
    if plan.long_draft:  # with it comes the same target again
        arms = four_arms(pair.draft, build("recall-40k", LONG_WINDOW).draft, DEPTH)
    else:
        arms = three_arms(pair.draft, DEPTH)
    prompts = [make_recall_prompt(n, seed=SEED, vocab=VOCAB) for n in plan.lengths]
    requests = [Request(prompt.prompt_ids, plan.generate) for prompt in prompts]
    results = run_arms(
        arms,
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
        "long_draft_window": LONG_WINDOW if plan.long_draft else None,
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
        plan.text_lengths,
        plan.text_generate,
        out,
        reporter,
        with_target_only=plan.text_target_only,
    )
    return outcome


def show(sections: dict[str, Any], console: Console) -> None:
    """Print the tables, the continuation and the notes."""
    recall, text = sections["recall"], sections["text"]
    note = report.placeholder_note(recall["rows"], recall["draft_window"])
    console.print()
    title = report.recall_title(recall)
    marked = note is not None
    console.print(report.table(recall["rows"], title, width=console.width, mark=marked))
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


def render(document: dict[str, Any]) -> str:
    """The document as JSON text."""
    return json.dumps(document, indent=1, ensure_ascii=False)


def save(document: dict[str, Any], out: Path) -> None:
    """Write ``demo-results.json`` into ``out``.

    Raises:
        OSError: it cannot be written.
    """
    (out / PICTURE).unlink(missing_ok=True)  # an older run's would not belong to these results
    (out / RESULTS).write_text(render(document) + "\n", encoding="utf-8")


def draw(document: dict[str, Any], out: Path, reporter: Reporter) -> None:
    """Write ``demo.png`` into ``out``, or say in a line why not: the results are elsewhere too."""
    try:
        picture.write_picture(document, out / PICTURE)
    except ImportError as error:
        reporter.note(f"no {PICTURE}: {error} (it needs matplotlib)")
    except Exception as error:  # whatever a drawing library raises
        said = " ".join(str(error).split())
        reporter.note(f"no {PICTURE}: {type(error).__name__}: {said}")


def demo(quick: bool, text: Path | None, out: Path, as_json: bool) -> int:
    """The command; returns its exit status.

    Progress goes to standard error. Standard output gets the tables, or with ``as_json`` the
    content of ``out/demo-results.json`` and nothing else. The picture is ``out/demo.png``.
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
            "machine": machine(),
            "versions": versions(),
            "quick": quick,
            "note": report.ILLUSTRATION,
            "wall_s": round(time.monotonic() - begin, 1),
            "failures": outcome.failures,
            **outcome.sections,
        }
        try:
            save(document, out)
        except OSError as error:  # what was measured is still shown below
            outcome.failures.append(f"results not written: {error}")
    if as_json:
        print(render(document))
    else:
        piped = None if sys.stdout.isatty() else report.WIDE
        show(document, Console(width=piped, highlight=False))
    draw(document, out, reporter)
    for failure in outcome.failures:
        reporter.note(f"FAILED: {failure}")
    reporter.note(f"{document['wall_s']:.0f} s; results, picture and server logs are in {out}")
    return FAILED if outcome.failures else PASSED
