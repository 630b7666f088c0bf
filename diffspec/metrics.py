# SPDX-License-Identifier: Apache-2.0
"""Every number DiffSpec reports: its name for Prometheus, what it means, and where it is kept.

One table for the channel between the processes (:mod:`diffspec.telemetry`), for the collectors in
vLLM's ``/metrics``, for the dashboard and for the tests of ``docs/metrics.md``. Names are given
without vLLM's prefix. Inside DiffSpec a number is known by its *flat key*: ``zero/no_gain``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

PREFIX = "vllm:"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: without :data:`PREFIX`; that of a counter ends in ``_total``.
        kind: what it is for Prometheus.
        help: one or two sentences for whoever reads ``/metrics``.
        key: flat key of its one number, or the part before the slash where there is a label.
        label: the label's name; "" without one.
        values: the label's values; empty for the depths 0 to K.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    key: str
    label: str = ""
    values: tuple[str, ...] = ()

    def cells(self, depth: int) -> dict[str, str]:
        """Flat key → label value ("" without a label), where K is ``depth``."""
        if not self.label:
            return {self.key: ""}
        values = self.values or tuple(map(str, range(depth + 1)))
        return {f"{self.key}/{value}": value for value in values}


def layout(depth: int) -> tuple[str, ...]:
    """The flat keys of all numbers, in the order in which the channel keeps them, for K = depth."""
    return tuple(_keys(depth))


def increase(before: float, now: float) -> float:
    """By how much a counter went up between two readings; never negative and never NaN.

    Lower than before means that it began anew, and ``now`` is what it has counted since.
    """
    if not math.isfinite(now) or now < 0:
        return 0.0
    return now - before if now >= before else now


def _keys(depth: int) -> Iterator[str]:
    for metric in METRICS:
        yield from metric.cells(depth)


METRICS: tuple[Metric, ...] = (
    Metric(
        "diffspec_request_steps_total",
        "counter",
        "Decode steps of requests, by the number of tokens proposed for the next step: fewer than "
        "the depth chosen where the draft was unsure (see diffspec_cut_tokens) or met a fault.",
        "depth",
        label="depth",
    ),
    Metric(
        "diffspec_drafted_tokens_total",
        "counter",
        "Drafted tokens that the scheduler sent to verification.",
        "drafted",
    ),
    Metric(
        "diffspec_accepted_tokens_total",
        "counter",
        "Drafted tokens that verification accepted.",
        "accepted",
    ),
    Metric(
        "diffspec_cut_tokens_total",
        "counter",
        "Drafted tokens that were not sent to verification, because the draft was unsure of them.",
        "cut",
    ),
    Metric(
        "diffspec_depth_zero_total",
        "counter",
        "Decode steps of requests without drafts, by reason: no_gain (drafting would not have been "
        "faster), no_slot (all drafting slots taken), length_limit (the request is about to reach "
        "max_model_len), fault (see diffspec_faults), measuring (one step without drafts, to see "
        "what it costs), not_ready (the request's newest draft rows are lost for now), unsure (the "
        "draft was unsure of the first token already).",
        "zero",
        label="reason",
        values=("no_gain", "no_slot", "length_limit", "fault", "measuring", "not_ready", "unsure"),
    ),
    Metric(
        "diffspec_shadow_drafts_total",
        "counter",
        "Tokens drafted without being submitted, to learn what drafting would gain.",
        "shadow",
    ),
    Metric(
        "diffspec_shadow_hits_total",
        "counter",
        "Shadow drafts that were what the target sampled next.",
        "shadow_hit",
    ),
    Metric(
        "diffspec_retrievals_total",
        "counter",
        "Selections made by scoring the target's keys with its last query.",
        "retrievals",
    ),
    Metric(
        "diffspec_rebuilds_total",
        "counter",
        "Working caches gathered anew, those of short contexts without a retrieval included.",
        "rebuilds",
    ),
    Metric(
        "diffspec_rows_changed_total",
        "counter",
        "Working-cache rows that retrievals replaced.",
        "rows_changed",
    ),
    Metric(
        "diffspec_step_seconds_total",
        "counter",
        "Seconds spent by part of a step: verify (the target's step and sampling), plan, draft, "
        "retrieve (scoring and selecting), rebuild (working caches gathered anew or extended), "
        "ingest. Wall time of the calls: work that is still in an accelerator's queue counts where "
        "it is waited for.",
        "seconds",
        label="part",
        values=("verify", "plan", "draft", "retrieve", "rebuild", "ingest"),
    ),
    Metric(
        "diffspec_faults_total",
        "counter",
        "Faults, each of which cost one step its drafts and no request anything; the first of a "
        "kind is in the log with its traceback.",
        "faults",
        label="kind",
        values=("ingest", "draft", "other"),
    ),
    Metric(
        "diffspec_stability",
        "gauge",
        "Share of the chunks, 0 to 1, that the last retrievals kept from the ones before.",
        "stability",
    ),
    Metric(
        "diffspec_working_tokens",
        "gauge",
        "Tokens in the working caches in use, all requests together.",
        "working_tokens",
    ),
    Metric("diffspec_slots_used", "gauge", "Drafting slots in use.", "slots_used"),
    Metric(
        "diffspec_break_even",
        "gauge",
        "Estimated acceptance per drafted token, 0 to 1, from which drafting pays at the present "
        "batch; NaN until known.",
        "break_even",
    ),
    Metric(
        "diffspec_acceptance_first",
        "gauge",
        "Estimated acceptance of a first drafted token, 0 to 1, over all requests.",
        "acceptance_first",
    ),
    Metric(
        "diffspec_off",
        "gauge",
        "1 while the process does not draft any more after faults, else 0.",
        "off",
    ),
)
