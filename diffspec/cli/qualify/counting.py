# SPDX-License-Identifier: Apache-2.0
"""Checks of what is counted, and of whether DiffSpec drafts at all, on every rank."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from diffspec.cli.qualify.bench import Bench, Row
from diffspec.cli.qualify.endpoint import STEPS, Reading, settled
from diffspec.testbed.counters import SpecCounters

_COUNTED = 500
_GENERATED = "vllm:generation_tokens_total"
_SPEC = "vllm:spec_decode_num_draft_tokens_total"
_DRAFTED = "vllm:diffspec_drafted_tokens_total"
_WITHOUT = "vllm:diffspec_depth_zero_total"
_ACCEPTED = "vllm:diffspec_accepted_tokens_total"
#: What each worker logs once the draft is loaded and its buffers are made, and the name that vLLM
#: puts before the lines of a process: ``(Worker_TP0 pid=123)``, ``(EngineCore_DP0 pid=123)``.
_LOADED = re.compile(r"DiffSpec: \d+ drafting slots; buffers")
_PROCESS = re.compile(r"^\((?P<name>[^()]*pid=\d+)\)")


def counters(bench: Bench) -> Row:
    """One request with nothing beside it: the counters have to add up to its tokens."""
    tokens = bench.plan.tokens
    prompt = bench.prompt(bench.plan.lengths[-1], _COUNTED)
    before = settled(bench.ours, _Still(), bench.plan.deadline_s)
    answer = bench.ours.complete(prompt, tokens).token_ids

    def arrived(now: Reading) -> bool:
        late = now.diffspec and now[_DRAFTED] - before[_DRAFTED] < now[_SPEC] - before[_SPEC]
        return now[_GENERATED] - before[_GENERATED] >= len(answer) and not late

    after = settled(bench.ours, arrived, bench.plan.deadline_s)
    spec = after.spec - before.spec
    wrong = list(_spec_problems(spec, len(answer)))
    if len(answer) != tokens:
        wrong.append(f"{len(answer)} of {tokens} tokens came")
    if (counted := after[_GENERATED] - before[_GENERATED]) != len(answer):
        wrong.append(f"{counted:.0f} generated tokens counted, {len(answer)} came")
    if after.diffspec:
        wrong += _diffspec_problems(before, after, len(answer))
    told = f"{spec.drafts} drafts, {spec.draft_tokens} drafted, {spec.accepted} accepted"
    return Row.judged("counters", not wrong, "; ".join([f"{tokens} tokens: {told}", *wrong]))


def drafting(bench: Bench, before: Reading) -> Row:
    """Everything since ``before``: drafts were made, without a fault, by every rank.

    Without a log no rank was looked at: the row is ``not-run``, unless something failed.
    """
    now = settled(bench.ours, _Still(), bench.plan.deadline_s)
    if not now.diffspec:
        absent = f"no {STEPS} in /metrics: DiffSpec is not at work there, or --disable-log-stats"
        return Row("draft loading", "failed", absent)
    spec = now.spec - before.spec
    secret = now["vllm:diffspec_shadow_drafts_total"] - before["vllm:diffspec_shadow_drafts_total"]
    faults, off = now["vllm:diffspec_faults_total"], now["vllm:diffspec_off"]
    wrong = []
    told = [
        f"{spec.draft_tokens} drafted, {spec.accepted} accepted ({spec.accepted_share:.1%})",
        f"{secret:.0f} drafted in secret",
    ]
    if not spec.draft_tokens and not secret:
        wrong.append("NOTHING was drafted")
    if faults or off:
        wrong.append(f"{faults:.0f} faults{', drafting is off' if off else ''}: see the log")
    if bench.plan.log is None:
        told.append("ranks not looked at: no --log")
    else:
        ranks = ranks_loaded(bench.plan.log)
        told.append(f"{len(ranks)} of {bench.plan.ranks} ranks loaded the draft, by the log")
        if len(ranks) != bench.plan.ranks:
            wrong.append(f"ranks in the log: {', '.join(ranks) or 'none'}")
    row = Row.judged("draft loading", not wrong, "; ".join([*told, *wrong]))
    # One rank that drafts shows nothing of the others, nor whose drafts they were.
    unseen = bench.plan.log is None and row.outcome == "passed"
    return replace(row, outcome="not-run") if unseen else row


def ranks_loaded(log: Path) -> list[str]:
    """The worker processes that loaded the draft, as the server's log names them.

    Lines without a process before them are one process.
    """
    # Undecodable bytes and colours are no reason to miss a line.
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace"))
    loaded = [line for line in text.splitlines() if _LOADED.search(line)]
    names = [found["name"] if (found := _PROCESS.match(line)) else "(unnamed)" for line in loaded]
    return sorted(set(names))


class _Still:
    """Whether nothing was counted since the reading before; DiffSpec's numbers come a bit late.

    Its totals are not vLLM's: of a request that a client left, vLLM does not count the last step.
    """

    def __init__(self) -> None:
        self._before: Reading | None = None

    def __call__(self, now: Reading) -> bool:
        names = (_GENERATED, _SPEC, _DRAFTED, _ACCEPTED, STEPS)
        before, self._before = self._before, now
        return before is not None and all(now[name] == before[name] for name in names)


def _spec_problems(spec: SpecCounters, tokens: int) -> Iterable[str]:
    at, depth = spec.accepted_at, len(spec.accepted_at)
    if spec.accepted > spec.draft_tokens:
        yield f"{spec.accepted} accepted of {spec.draft_tokens} drafted"
    if sum(at) != spec.accepted:
        yield f"{sum(at)} accepted by position, {spec.accepted} in all"
    if any(later > earlier for earlier, later in itertools.pairwise(at)):
        yield f"a later position accepted more often than an earlier one: {at}"
    # The first token is the prompt's, and the last step may accept past the end of the answer.
    if spec.drafts + spec.accepted > tokens - 1 + depth:
        yield f"{spec.drafts} steps and {spec.accepted} accepted give more than {tokens} tokens"


def _diffspec_problems(before: Reading, after: Reading, tokens: int) -> Iterable[str]:
    spec = after.spec - before.spec
    drafted, accepted = (after[n] - before[n] for n in (_DRAFTED, _ACCEPTED))
    steps = after[STEPS] - before[STEPS]
    if (drafted, accepted) != (spec.draft_tokens, spec.accepted):
        yield (
            f"DiffSpec counts {drafted:.0f} drafted and {accepted:.0f} accepted, "
            f"vLLM {spec.draft_tokens} and {spec.accepted}"
        )
    if after[_WITHOUT] - before[_WITHOUT]:
        return  # steps that rest are counted when the rest ends, which may be with a later request
    # One step more where the last one still chose a depth, and what it accepted past the end.
    depth = len(after.spec.accepted_at)
    if not tokens - 1 <= steps + accepted <= tokens + depth:
        yield f"{steps:.0f} steps and {accepted:.0f} accepted do not give {tokens} tokens"
