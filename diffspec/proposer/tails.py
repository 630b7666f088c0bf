# SPDX-License-Identifier: Apache-2.0
"""The first token of each chain that was drafted and not submitted, until the target has spoken.

If everything before it is accepted, the target's own next token says whether it would have been,
too. Without that, acceptance would be known of tokens alone of which the draft was sure.
"""

from __future__ import annotations

import numpy as np

from diffspec.proposer.batch import IntArray, StepBatch

_NONE = -1


class Tails:
    """One such token per slot.

    Args:
        slots: number of slots.
    """

    def __init__(self, slots: int) -> None:
        self.token = np.full(slots, _NONE, dtype=np.int64)
        self._length = np.zeros(slots, dtype=np.int64)
        self._before = np.zeros(slots, dtype=np.int64)

    def keep(
        self, slots: IntArray, lengths: IntArray, submitted: IntArray, tokens: IntArray
    ) -> None:
        """Remember ``tokens`` ``[m]`` of ``slots`` ``[m]``.

        Args:
            lengths: ``[m]``, context lengths when they were drafted.
            submitted: ``[m]``, drafted tokens before them.
        """
        self.token[slots], self._length[slots], self._before[slots] = tokens, lengths, submitted

    def compare(self, slots: IntArray, batch: StepBatch) -> IntArray:
        """For the requests ``[b]`` of a batch in ``slots`` ``[b]`` (-1 for none): 1 if the token
        was right, 0 if not, -1 if there is none or the target has not come so far. What the batch
        has come past is forgotten."""
        token, before = self.token[slots], self._before[slots]
        known = (slots >= 0) & batch.drafting & (token != _NONE)
        # The host may have scheduled less than was submitted, or started the request over.
        asked = known & (batch.drafted == before) & (batch.accepted == before)
        asked &= batch.lengths == self._length[slots] + before + 1
        self.token[slots[known]] = _NONE
        return np.where(asked, (token == batch.newest).astype(np.int64), -1)

    def forget(self, slot: int) -> None:
        """The request in ``slot`` has ended."""
        self.token[slot] = _NONE
