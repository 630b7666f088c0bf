# SPDX-License-Identifier: Apache-2.0
"""Is one answer the other, and if not, was the target itself undecided where they part?

Greedy speculative output may leave target-only's only at an argmax tie: batched verification sums
in another order, so logits closer than rounding can swap. The target's own logits tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Largest float32 logit gap that counts as a tie.
FLOAT32_TIE = 1e-4


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers part. ``gap`` and ``allowed`` are in logits of the target alone."""

    at: int
    candidates: tuple[int, int]
    gap: float
    allowed: float

    @property
    def tie(self) -> bool:
        """Whether rounding excuses the difference."""
        return self.gap <= self.allowed


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token that differs, or None for equal sequences."""
    for index, (token, expected) in enumerate(zip(tokens, reference, strict=False)):
        if token != expected:
            return index
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def compare(
    tokens: Sequence[int],
    reference: Sequence[int],
    logits: Sequence[Mapping[int, float]],
    dtype: str,
) -> Difference | None:
    """The first difference of two equally long answers to one prompt, or None.

    Args:
        tokens: the answer in question.
        reference: target-only's.
        logits: the target's largest logits at each position of ``reference``, token → logit; a
            candidate that is not among them was far from the top.
        dtype: ``float32`` allows 1e-4, ``bfloat16`` one step of that type at the top logit's size.
    """
    at = first_difference(tokens, reference)
    if at is None:
        return None
    pair = (tokens[at], reference[at])
    here = logits[at]
    gap = abs(here.get(pair[0], -math.inf) - here.get(pair[1], -math.inf))
    top = max(abs(value) for value in here.values())
    # bfloat16 keeps 8 significant bits.
    step = 2.0 ** (math.floor(math.log2(top)) - 7) if dtype == "bfloat16" else FLOAT32_TIE
    return Difference(at, pair, gap, step)
