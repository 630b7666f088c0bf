# SPDX-License-Identifier: Apache-2.0
"""Are two answers the same, and if not, was the target itself undecided where they part?

Over HTTP only log-probabilities are seen. Their differences are those of the logits, so the gap of
two candidates can be told; the size of the logits, and with it their rounding step, cannot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from diffspec.cli.client import RequestError
from diffspec.cli.qualify.asking import Asker
from diffspec.testbed.identity import first_difference

#: How many of the likeliest tokens to ask for.
LIKELIEST = 5
#: Log-probabilities are sums in float32, so a gap of exactly one step comes a bit off.
_ROUNDING = 1e-4
#: Differences told of; more say nothing new.
_TOLD = 3


@dataclass
class Tally:
    """Answers compared. ``notes`` has a line for each that was not the same."""

    same: int = 0
    ties: int = 0
    different: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        """All of them."""
        return self.same + self.ties + self.different

    def __str__(self) -> str:
        parts = [f"{self.same} of {self.compared} identical"]
        if self.ties:
            parts.append(f"{self.ties} apart at a tie")
        if self.different:
            parts.append(f"{self.different} DIFFERENT")
        # What fails comes first.
        notes = sorted(self.notes, key=lambda note: ", a tie: " in note)
        more = [f"and {len(notes) - _TOLD} more"] if len(notes) > _TOLD else []
        return "; ".join([", ".join(parts), *notes[:_TOLD], *more])


@dataclass(frozen=True)
class Judge:
    """Compares answers; ``reference`` is the endpoint whose answers are right.

    ``tie`` is the largest gap, in logits, at which either candidate will do.
    """

    reference: Asker
    tie: float

    def judge(
        self,
        tally: Tally,
        what: str,
        prompt: Sequence[int],
        got: Sequence[int],
        want: Sequence[int],
    ) -> None:
        """Add one comparison to ``tally``; ``what`` names the answer. Raises RequestError."""
        at = first_difference(got, want)
        if at is None:
            tally.same += 1
            return
        if len(got) != len(want):
            tally.different += 1
            tally.notes.append(f"{what}: {len(got)} of {len(want)} tokens came")
            return
        gap, why = self.gap(prompt, want, at, got[at])
        where = f"{what}: {got[at]} instead of {want[at]} at token {at + 1}"
        if gap is not None and gap <= self.tie + _ROUNDING:
            tally.ties += 1
            tally.notes.append(f"{where}, a tie: logits {gap:.2g} apart")
        else:
            tally.different += 1
            tally.notes.append(f"{where}, {why}")

    def gap(
        self, prompt: Sequence[int], want: Sequence[int], at: int, got: int
    ) -> tuple[float | None, str]:
        """The gap between ``got`` and ``want[at]`` in logits, and a remark; None: not known."""
        try:
            # Generated anew, not read as a prompt: other shapes round differently.
            answer = self.reference.likeliest(prompt, at + 1, LIKELIEST)
        except RequestError as error:
            return None, f"and no log-probabilities ({error})"
        if [token for token, _ in answer[:at]] != list(want[:at]):
            return None, "and the reference does not repeat its own answer"
        top = answer[at][1] if at < len(answer) else {}
        if got not in top or want[at] not in top:
            return None, f"which is not among the reference's {LIKELIEST} likeliest there"
        gap = abs(top[got] - top[want[at]])
        return (gap, f"logits {gap:.2g} apart") if math.isfinite(gap) else (None, "impossible")
