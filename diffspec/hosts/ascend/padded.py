# SPDX-License-Identifier: Apache-2.0
"""Which rows of a padded batch hold.

vLLM-Ascend leaves the rows of rejected drafts in the batch it hands to its drafter, because the
captured graphs of whole decode steps want batches of one shape. Their features belong to tokens
that were never said, so they must not reach the draft's caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diffspec.proposer.batch import IntArray


@dataclass(frozen=True, slots=True)
class HeldRows:
    """The rows of a padded batch of ``b`` requests that hold, ``n`` in all.

    Attributes:
        rows: ``[n]``, where they are in the batch; None if all rows hold.
        row_starts: ``[b + 1]``, first row of each request among them.
        last: ``[b]``, each request's last one, in the batch.
        lengths: ``[b]``, context lengths: position of that row plus one.
    """

    rows: IntArray | None
    row_starts: IntArray
    last: IntArray
    lengths: IntArray


def count_sampled(tokens: IntArray, discarded: IntArray, vocabulary: int) -> IntArray:
    """How many tokens ``[b]`` each request sampled.

    Args:
        tokens: ``[b, K + 1]`` or ``[b, 1]``, -1 in the place of a rejected draft.
        discarded: requests whose prefill goes on: what was sampled for them means nothing.
        vocabulary: tokens from here on are placeholders, too.
    """
    counts: IntArray = ((tokens != -1) & (tokens < vocabulary)).sum(axis=1, dtype=np.int64)
    counts[discarded] = 0
    return counts


def held_rows(
    starts: IntArray, lengths: IntArray, drafted: IntArray, sampled: IntArray
) -> HeldRows:
    """Leave out the rows after the last accepted one.

    Args:
        starts: ``[b + 1]``, first row of each request in the batch.
        lengths: ``[b]``, context lengths as if every draft had been accepted.
        drafted: ``[b]``, drafts in the batch.
        sampled: ``[b]``, tokens sampled.

    Raises:
        ValueError: a request has drafts and sampled nothing, or more than it can have.
    """
    rejected = np.where(drafted > 0, drafted + 1 - sampled, 0)
    if (rejected < 0).any() or (rejected > drafted).any():
        raise ValueError(f"{sampled.tolist()} tokens sampled of {drafted.tolist()} drafts each")
    counts = np.diff(starts) - rejected
    row_starts = np.concatenate(([0], np.cumsum(counts)))
    rows = None
    if rejected.any():
        rows = np.arange(row_starts[-1]) + np.repeat(starts[:-1] - row_starts[:-1], counts)
    return HeldRows(rows, row_starts, starts[1:] - 1 - rejected, lengths - rejected)
