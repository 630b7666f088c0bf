# SPDX-License-Identifier: Apache-2.0
"""What all checks share: the endpoints, how much to ask, and the answers already known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from diffspec.cli.progress import Reporter
from diffspec.cli.qualify.agreement import Judge, Tally
from diffspec.cli.qualify.asking import Asker
from diffspec.cli.qualify.prompts import Prompts
from diffspec.testbed.identity import first_difference

#: Most that target-only's own changes in a crowd can excuse, in ties.
NOISE = 4
Outcome = Literal["passed", "failed", "not-run"]


@dataclass(frozen=True)
class Row:
    """One row of the functional matrix; ``detail`` says in words what was seen."""

    name: str
    outcome: Outcome
    detail: str

    @classmethod
    def judged(cls, name: str, passed: bool, detail: str) -> Row:
        """A row that passed or failed."""
        return cls(name, "passed" if passed else "failed", detail)


@dataclass(frozen=True)
class Plan:
    """How much is asked.

    Attributes:
        lengths: prompts in tokens, ascending.
        longest: the longest prompt, in tokens.
        max_model_len: in tokens; None where the endpoint does not say.
        tokens: generated per request.
        batch: requests that the server takes at once (its ``--max-num-seqs``).
        repeats: pairs of timed requests for each length.
        tie: gap, in logits, up to which either of two candidates will do.
        ranks: workers, each of which has to load the draft.
        log: the server's log, if it can be read here.
        deadline_s: how long to wait for counters and for a server to become idle, in seconds.
    """

    lengths: tuple[int, ...]
    longest: int
    max_model_len: int | None
    tokens: int
    batch: int
    repeats: int
    tie: float
    ranks: int = 1
    log: Path | None = None
    deadline_s: float = 30.0


@dataclass
class Bench:
    """Endpoints under test; ``target`` serves the target alone, where there is one."""

    ours: Asker
    target: Asker | None
    prompts: Prompts
    plan: Plan
    reporter: Reporter
    tally: Tally = field(default_factory=Tally)
    _known: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    @property
    def reference(self) -> Asker:
        """Whose answers are right: target-only's, or else the endpoint's own first ones."""
        return self.target or self.ours

    def prompt(self, length: int, number: int) -> list[int]:
        """A prompt, see :class:`Prompts`."""
        return self.prompts.prompt(length, number)

    def expected(self, prompt: Sequence[int]) -> list[int]:
        """The right answer, asked for by itself and once."""
        known = self._known.get(tuple(prompt))
        if known is None:
            known = self.reference.complete(prompt, self.plan.tokens).token_ids
            self._known[tuple(prompt)] = known
        return known

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """The endpoint's answer to one request by itself."""
        return self.ours.complete(prompt, self.plan.tokens).token_ids

    def compare(
        self, tally: Tally, what: str, prompt: Sequence[int], got: Sequence[int], tie: float = 0.0
    ) -> None:
        """Compare an answer with the right one; ``tie`` is wider than the plan's, if at all."""
        want = self.expected(prompt)
        if len(want) != self.plan.tokens:
            tally.different += 1
            tally.notes.append(f"{what}: the reference gave {len(want)} tokens")
            return
        judge = Judge(self.reference, max(tie, self.plan.tie))
        judge.judge(tally, what, prompt, got, want)

    def noise(self, prompts: Sequence[Sequence[int]]) -> float:
        """How far apart candidates are between which target-only itself changes in a crowd.

        In low precision a batch rounds differently from a request by itself, with speculation or
        without. The largest gap, in logits, between the target's own first choice alone and among
        ``prompts``; 0 without target-only.
        """
        most = NOISE * self.plan.tie
        if self.target is None or len(prompts) == 1:
            return 0.0
        gaps = [0.0]
        answers = self.target.together(prompts, self.plan.tokens)
        for prompt, got in zip(prompts, answers, strict=True):
            want = self.expected(prompt)
            at = first_difference(got, want)
            if at is not None and at < min(len(got), len(want)):
                gap, _ = Judge(self.target, self.plan.tie).gap(prompt, want, at, got[at])
                gaps.append(most if gap is None else gap)
        return min(max(gaps), most)

    def check(self, name: str, tally: Tally, *more: str, passed: bool = True) -> Row:
        """The row of a comparison: passed if nothing differed and ``passed``."""
        self.tally.same += tally.same
        self.tally.ties += tally.ties
        self.tally.different += tally.different
        return Row.judged(name, passed and not tally.different, "; ".join((*more, str(tally))))
