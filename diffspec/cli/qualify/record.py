# SPDX-License-Identifier: Apache-2.0
"""A qualification as an evidence record (``schemas/evidence.schema.json``).

What does not come over HTTP is what whoever runs the command says: the hardware, the draft, the
release that is served. Without it the record says that nobody did, and judges no pair.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diffspec.cli.qualify.agreement import Tally
from diffspec.cli.qualify.bench import Plan, Row
from diffspec.cli.qualify.performance import METRICS, OURS, TARGET, Cell, Verdict, percentiles
from diffspec.evidence.records import FORMAT
from diffspec.testbed.counters import SpecCounters

UNSAID = "not stated; it cannot be seen over HTTP"
_UNITS = dict(zip(METRICS, ("s", "s", "tokens/s"), strict=True))


@dataclass(frozen=True)
class Said:
    """What the user told about the endpoint; None where nothing was said.

    ``hosts``: serving software beside what the endpoint itself tells, name → version.
    """

    hardware: str | None = None
    draft: str | None = None
    checkpoint_sha256: str | None = None
    release: str | None = None
    command: str | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What the run found out."""

    model: str
    host_version: str | None
    rows: Sequence[Row]
    tally: Tally
    spec: SpecCounters
    cells: Sequence[Cell]
    verdict: Verdict
    compared: bool


def record(name: str, plan: Plan, said: Said, seen: Seen, date: datetime.date) -> dict[str, Any]:
    """The record with id ``name``, as plain JSON data."""
    function = status(seen.rows, seen.compared)
    judged = bool(function == "passed" and said.draft and said.checkpoint_sha256)
    failed = [row.name for row in seen.rows if row.outcome == "failed"]
    works = "every functional check passed" if not failed else f"failed: {', '.join(failed)}"
    known: dict[str, str | None] = {"vLLM": None, **said.hosts}
    known["vLLM"] = seen.host_version or known["vLLM"]
    hosts = [{"name": name, "version": version, "commit": None} for name, version in known.items()]
    models: dict[str, Any] = {
        "target": {"name": seen.model},
        "draft": {"name": said.draft or UNSAID},
    }
    if said.checkpoint_sha256:
        models["checkpoint_sha256"] = said.checkpoint_sha256
    improved = seen.verdict.speed == "improved"
    return {
        "schema": FORMAT,
        "kind": "qualification",
        "id": name,
        "title": f"{seen.model}, qualified over HTTP on {date.isoformat()}",
        "summary": f"{works[0].upper()}{works[1:]}. In speed: {seen.verdict.text}.",
        "date": date.isoformat(),
        "measured_by": "whoever ran `diffspec qualify`",
        "sources": {"run": "this run of `diffspec qualify`"},
        "subject": {
            "name": "the DiffSpec behind the endpoint",
            "releases": [said.release] if said.release else [],
            "note": "The release is what whoever ran the command says."
            if said.release
            else f"The release served is {UNSAID}.",
        },
        "where": {"hardware": said.hardware or UNSAID, "ranks": plan.ranks, "hosts": hosts},
        "models": models,
        "settings": _settings(plan),
        "command": said.command,
        "environment": {},
        "checks": [
            {"name": row.name, "outcome": row.outcome, "detail": row.detail} for row in seen.rows
        ],
        "measurements": list(_measurements(seen)),
        "function": {"status": function, "recovery": _recovery(seen.rows)},
        "pair": {
            "state": "compatible" if judged else "not-judged",
            "performance": seen.verdict.speed,
            "recommended": judged and improved,
        },
        "verdict": {
            "word": seen.verdict.word,
            "cell": f"{seen.model}, prompts of {', '.join(map(str, plan.lengths))} tokens, "
            f"{plan.tokens} generated, greedy, one request at a time",
            "reason": seen.verdict.text,
        },
        "not_verified_here": list(_open(plan, said, seen)),
    }


def status(rows: Iterable[Row], compared: bool) -> str:
    """The function's word; without target-only answers to compare with it is not ``passed``."""
    outcomes = {row.outcome for row in rows}
    if "failed" in outcomes:
        return "failed"
    return "passed" if compared and outcomes == {"passed"} else "unverified"


def _recovery(rows: Iterable[Row]) -> str:
    wanted = ("cancellation", "exception recovery")
    outcomes = {row.outcome for row in rows if row.name in wanted}
    if "failed" in outcomes:
        return "failed"
    return "passed" if outcomes == {"passed"} else "unverified"


def _settings(plan: Plan) -> dict[str, Any]:
    told: dict[str, Any] = {
        "prompt lengths": list(plan.lengths),
        "longest prompt": plan.longest,
        "generated tokens": plan.tokens,
        "requests at once": plan.batch,
        "timed pairs per length": plan.repeats,
        "temperature": 0,
        "a tie is at most, in logits": plan.tie,
    }
    return told if plan.max_model_len is None else told | {"max_model_len": plan.max_model_len}


def _measurements(seen: Seen) -> Iterable[dict[str, Any]]:
    for cell in seen.cells:
        figures = []
        for arm in (OURS, TARGET):
            if timings := cell.arm(arm):
                for metric, values in percentiles(timings).items():
                    for statistic, value in zip(("P50", "P95"), values, strict=True):
                        figures.append(
                            _figure(arm, metric, round(value, 4), _UNITS[metric], statistic)
                        )
        if ratios := cell.ratios():
            middle = statistics.median(ratios)
            what = "target-only's request latency over DiffSpec's, by pair"
            figures.append(_figure(OURS, what, round(middle, 4), "ratio", "median"))
        yield {
            "cell": {"prompt tokens": str(cell.length), "pairs": str(len(cell.pairs))},
            "source": "run",
            "figures": figures,
        }
    spec, tally = seen.spec, seen.tally
    counted = [
        _figure(OURS, "draft tokens", spec.draft_tokens, "tokens"),
        _figure(OURS, "accepted draft tokens", spec.accepted, "tokens"),
    ]
    if spec.draft_tokens:
        share = round(100 * spec.accepted_share, 2)
        counted.append(_figure(OURS, "accepted share of draft tokens", share, "%"))
    yield {"cell": {"requests": "all of the run"}, "source": "run", "figures": counted}
    reference = "target-only" if seen.compared else "its own first answers"
    yield {
        "cell": {"requests": f"compared with {reference}"},
        "source": "run",
        "figures": [
            _figure(OURS, "compared", tally.compared, "outputs"),
            _figure(OURS, "identical", tally.same, "outputs"),
            _figure(OURS, "apart at a tie", tally.ties, "outputs"),
            _figure(OURS, "different", tally.different, "outputs"),
        ],
    }


def _figure(
    arm: str, metric: str, value: float, unit: str, statistic: str | None = None
) -> dict[str, Any]:
    figure: dict[str, Any] = {"arm": arm, "metric": metric, "value": value, "unit": unit}
    return figure if statistic is None else figure | {"statistic": statistic}


def _open(plan: Plan, said: Said, seen: Seen) -> Iterable[str]:
    yield "A fault inside drafting cannot be provoked over HTTP; recovery is about clients' faults."
    yield "That captured graphs were replayed; only that every batch size gives the same tokens."
    yield "The prompts are generated text; with other text other drafts are accepted."
    if not seen.compared:
        yield "Nothing was compared with target-only: neither the tokens nor the speed."
    if plan.log is None:
        yield "Whether every rank loaded the draft: no log was given."
    if not said.checkpoint_sha256 or not said.draft:
        yield "Which draft is served, and its checkpoint; so the pair is not judged."
    if seen.host_version is None and "vLLM" not in said.hosts:
        yield "The version of the host, which the endpoint does not tell."
    if not said.hosts:
        yield "Whether a host beside vLLM serves, as vLLM-Ascend on NPUs: no --host names one."
