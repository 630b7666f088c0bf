# SPDX-License-Identifier: Apache-2.0
"""The joint choice of depths: most expected tokens per second for the whole batch.

A token's gain is the chance that it is accepted with all before it, so gains fall along a chain.
However many tokens are drafted in all, then, and however deep a chain may be, the best ones are
those of highest gain, and they are prefixes of the chains. So one sort of all gains serves every
total and every deepest chain: O(bK log bK + bK²) for b requests, in K array operations, with one
look at the cost model per distinct entry of its table and per depth. Nothing better exists as far
as a step's time depends on the rows it verifies and on its deepest chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from diffspec.adaptive_depth.acceptance import FloatArray
from diffspec.adaptive_depth.cost import buckets
from diffspec.adaptive_depth.policy import IntArray


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step of some requests: ``verify(drafted tokens in all)`` and
    ``propose(deepest chain)``. ``others`` requests beside those chosen for decode in it, too;
    ``known`` if a step without drafts was measured near here."""

    verify: Callable[[int], float]
    propose: Callable[[int], float]
    others: int = 0
    known: bool = True

    def __call__(self, drafted: int, deepest: int) -> float:
        """The whole step."""
        return self.verify(drafted) + self.propose(deepest)


@dataclass(frozen=True, slots=True)
class Choice:
    """Depths ``[b]``, the tokens expected from them and the seconds the step should take."""

    depths: IntArray
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def gains_of(rates: FloatArray) -> FloatArray:
    """Chance ``[b, K]`` that a drafted token is accepted with all before it, from ``a_i``."""
    gains: FloatArray = np.cumprod(rates, axis=1, dtype=np.float64)
    return gains


def evaluate(gains: FloatArray, depths: IntArray, cost: StepCost) -> Choice:
    """The given ``depths`` ``[b]`` as a choice."""
    drafted = np.arange(gains.shape[1]) < depths[:, None]
    tokens = len(depths) + cost.others + float(gains[drafted].sum())
    return Choice(depths, tokens, cost(int(depths.sum()), int(depths.max(initial=0))))


def choose(gains: FloatArray, caps: IntArray, cost: StepCost, *, least: int = 0) -> Choice:
    """The depths of the highest rate.

    Args:
        gains: ``[b, K]``, see :func:`gains_of`.
        caps: ``[b]``, the most each request may draft.
        least: what each drafts at least (where its cap allows).
    """
    b, depth = gains.shape
    at = np.arange(depth)
    floor = np.minimum(caps, least)
    row, position = np.nonzero(at < caps[:, None])
    gain = gains[row, position]
    # What has to be drafted goes first.
    order = np.argsort(-np.where(position < floor[row], gain + 1, gain), kind="stable")
    row, position, gain = row[order], position[order], gain[order]
    must, deepest_cap = int(floor.sum()), int(caps.max(initial=0))

    verify = verify_times(b, len(row), cost)
    propose = np.array([cost.propose(d) for d in range(deepest_cap + 1)])
    best = evaluate(gains, floor, cost)
    # With one request the total is the deepest chain.
    for limit in range(1, deepest_cap + 1) if b > 1 else (deepest_cap,):
        within = position < limit
        tokens = b + cost.others + np.cumsum(gain[within])
        deepest = np.maximum.accumulate(position[within] + 1)
        seconds = verify[1 : len(tokens) + 1] + propose[deepest]
        rate = tokens / seconds
        rate[: max(must - 1, 0)] = 0
        if len(rate) and rate[total := int(rate.argmax())] > best.rate:
            depths = np.bincount(row[within][: total + 1], minlength=b).astype(np.int64)
            best = Choice(depths, float(tokens[total]), float(seconds[total]))
    return best


def choose_uniform(
    gains: FloatArray, caps: IntArray, cost: StepCost, allowed: tuple[int, ...]
) -> Choice:
    """As :func:`choose` where every request must have one of the ``allowed`` depths, the same for
    all: a host that captured graphs for these alone. Caps cut a request's own depth."""
    choices = [evaluate(gains, np.minimum(caps, depth), cost) for depth in allowed]
    return max(choices, key=lambda choice: choice.rate)


def break_even(cost: StepCost, requests: int, depths: Sequence[int]) -> float:
    """Acceptance per token, the same for all ``requests`` at all positions, from which drafting as
    deep as one of ``depths``, the same for all, beats not drafting."""
    zero = requests / cost(0, 0)
    seconds = [cost(requests * depth, depth) for depth in depths]
    low, high = 0.0, 1.0
    for _ in range(10):
        middle = (low + high) / 2
        tokens = np.cumsum(middle ** np.arange(max(depths) + 1.0)) * requests
        pays = max(tokens[d] / took for d, took in zip(depths, seconds, strict=True))
        low, high = (low, middle) if pays > zero else (middle, high)
    return high


def verify_times(b: int, most: int, cost: StepCost) -> FloatArray:
    """``[most + 1]``, seconds of verifying with 0…``most`` drafted tokens."""
    b += cost.others
    entries = buckets(b + most + 1)[b : b + most + 1]
    # The first total of each table entry stands for all of it.
    _, first, which = np.unique(entries, return_index=True, return_inverse=True)
    times = np.array([cost.verify(int(total)) for total in first])
    return times[which]
