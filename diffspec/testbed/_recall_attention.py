# SPDX-License-Identifier: Apache-2.0
"""Attention heads written down by formula: one that looks a fixed distance back, one that matches.

Every vector of the residual stream is made of blocks holding +1/-1 codes, plus a constant 1. The
number of non-zero entries at each place is known, so RMSNorm divides by a known number
(`rms_of_units`), and multiplying the weights behind it by that number undoes it exactly.

A head has 128 dimensions, of which rotary embedding turns pair j (dimensions j and j + 64) by
`THETA ** (-j / 64)` rad per token. With `THETA = 1e24` that is 10^(-0.375 j):

* pairs 0..15 (1 to 2e-6 rad/token) are a clock: a query built with a phase shift of b tokens scores
  highest against the key exactly b tokens back;
* pairs 16..63 (at most 1e-6 rad/token, 0.03 rad over 32K tokens) barely move, so the 96 dimensions
  they hold compare content whatever the distance: four blocks of 24, that is four tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from diffspec.testbed._golay import CODE_LENGTH, MAX_CORRELATION

HIDDEN = 160
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 128
GROUP = HEADS // KV_HEADS
ROPE_THETA = 1e24
RMS_EPS = 1e-6

NGRAM = 4
"""Tokens compared by a matching head."""

CLOCK_PAIRS = 16
CLOCK_DECAY = 0.75
CLOCK_SCORE = 400.0
"""Attention score of a clock head at its own distance."""

MATCH_SCORE = 60.0
"""Attention score per matching token; a full match scores `NGRAM` times this."""

LONGEST_CONTEXT = 32768
_MARGIN = math.log(LONGEST_CONTEXT) + 20.0
"""A score gap this large leaves all competitors together under e^-20 of the attention weight."""

_HALF = HEAD_DIM // 2
_CONTENT_DIMS = torch.tensor([*range(CLOCK_PAIRS, _HALF), *range(_HALF + CLOCK_PAIRS, HEAD_DIM)])

Columns = slice
Operand = tuple[Columns, float]
"""Where a block lies in a projection's input, and the RMSNorm divisor it went through."""


def rms_of_units(units: int) -> float:
    """Return what RMSNorm divides by for a vector of `units` entries of +1/-1, zero elsewhere."""
    return math.sqrt(units / HIDDEN + RMS_EPS)


class Attention:
    """The four projections of one attention layer, zero until heads are written into them.

    `query`, `key` and `value` return `[HEAD_DIM, width]` views of one head's rows; `output` returns
    the `[HIDDEN, HEAD_DIM]` view of one head's columns. All float32.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._q = torch.zeros(HEADS * HEAD_DIM, width)
        self._k = torch.zeros(KV_HEADS * HEAD_DIM, width)
        self._v = torch.zeros(KV_HEADS * HEAD_DIM, width)
        self._o = torch.zeros(HIDDEN, HEADS * HEAD_DIM)

    def query(self, head: int) -> torch.Tensor:
        """Rows of query head `head`."""
        return self._q[_rows(head)]

    def key(self, kv_head: int) -> torch.Tensor:
        """Rows of key head `kv_head`."""
        return self._k[_rows(kv_head)]

    def value(self, kv_head: int) -> torch.Tensor:
        """Rows of value head `kv_head`."""
        return self._v[_rows(kv_head)]

    def output(self, head: int) -> torch.Tensor:
        """Columns of the output projection that read query head `head`."""
        return self._o[:, _rows(head)]

    def weights(self, prefix: str) -> dict[str, torch.Tensor]:
        """Return the projections under their checkpoint names."""
        return {
            f"{prefix}.self_attn.q_proj.weight": self._q,
            f"{prefix}.self_attn.k_proj.weight": self._k,
            f"{prefix}.self_attn.v_proj.weight": self._v,
            f"{prefix}.self_attn.o_proj.weight": self._o,
        }


def clock_key(norm: float) -> torch.Tensor:
    """Return the key column `[HEAD_DIM]` of a clock head; it reads the constant 1.

    `norm` is the RMSNorm divisor that the constant went through.
    """
    weight, _ = _clock()
    column = torch.zeros(HEAD_DIM, dtype=torch.float64)
    column[:CLOCK_PAIRS] = _clock_amplitude(weight) * norm
    return column.float()


def clock_query(norm: float, back: int) -> torch.Tensor:
    """Return the query column `[HEAD_DIM]` that attends the token exactly `back` tokens ago.

    Rotating the query by the angle of `back` tokens moves the peak of
    `score(d) = CLOCK_SCORE * sum_j w_j cos(f_j (d - back))` from d = 0 to d = back.
    """
    weight, frequency = _clock()
    amplitude = _clock_amplitude(weight) * norm
    column = torch.zeros(HEAD_DIM, dtype=torch.float64)
    column[:CLOCK_PAIRS] = amplitude * torch.cos(back * frequency)
    column[_HALF : _HALF + CLOCK_PAIRS] = -amplitude * torch.sin(back * frequency)
    return column.float()


def match_rows(blocks: Sequence[Operand], width: int) -> torch.Tensor:
    """Return the `[HEAD_DIM, width]` query or key rows that lay `NGRAM` code blocks side by side.

    Used for both sides of a match, the score is `MATCH_SCORE` times the summed block correlations.
    """
    rows = torch.zeros(HEAD_DIM, width)
    amplitude = math.sqrt(MATCH_SCORE * math.sqrt(HEAD_DIM) / CODE_LENGTH)
    for slot, (columns, norm) in enumerate(blocks):
        dims = _CONTENT_DIMS[slot * CODE_LENGTH : (slot + 1) * CODE_LENGTH]
        rows[dims, columns] = amplitude * norm * torch.eye(CODE_LENGTH)
    return rows


def check_separation(codes: torch.Tensor) -> None:
    """Check that the right key outscores all others by enough, at any distance, for any token.

    Args:
        codes: `[vocab, CODE_LENGTH]`, entries +1 and -1.

    Raises:
        ValueError: if two codes are too alike.
        AssertionError: if the clock's constants were changed into ones that do not separate.
    """
    correlation = codes @ codes.T / CODE_LENGTH
    correlation.fill_diagonal_(-1.0)
    worst = correlation.max().item()
    if worst > MAX_CORRELATION + 1e-6 or MATCH_SCORE * (1 - worst) < _MARGIN:
        raise ValueError(f"two token codes have correlation {worst:.3f}")
    weight, frequency = _clock()
    distance = torch.arange(1, LONGEST_CONTEXT + 1, dtype=torch.float64)
    drop = CLOCK_SCORE * ((1 - torch.cos(distance[:, None] * frequency)) @ weight)
    assert drop.min().item() > _MARGIN, drop.min().item()


def _clock() -> tuple[torch.Tensor, torch.Tensor]:
    """Weight (summing to 1) and frequency (rad/token) of each clock pair, `[CLOCK_PAIRS]`, float64.

    Fast pairs tell neighbours apart and get most of the weight; slow ones break the ties that fast
    ones, being periodic, have far away.
    """
    pair = torch.arange(CLOCK_PAIRS, dtype=torch.float64)
    weight = CLOCK_DECAY**pair
    return weight / weight.sum(), ROPE_THETA ** (-pair / _HALF)


def _clock_amplitude(weight: torch.Tensor) -> torch.Tensor:
    # q and k carry one square root each; sqrt(HEAD_DIM) undoes the softmax scale.
    return weight.sqrt() * math.sqrt(CLOCK_SCORE * math.sqrt(HEAD_DIM))


def _rows(head: int) -> slice:
    return slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
