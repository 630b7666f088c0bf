# SPDX-License-Identifier: Apache-2.0
"""What was drafted last, until the target has spoken: of tokens that were not verified, too.

A chain is verified as far as the draft was sure of it and the host scheduled it: a grammar or a
token budget may cut it shorter. If all of that is accepted, the target's own next token says
whether the chain's next one would have been. Without it, acceptance would be known of tokens alone
of which the draft was sure, and nothing at all of a request whose drafts a grammar never lets pass.
"""

from __future__ import annotations

import numpy as np

from diffspec.proposer.batch import IntArray, StepBatch

_NONE = -1


class Tails:
    """The last chain of each slot.

    Args:
        slots: number of slots.
        depth: K.
    """

    def __init__(self, slots: int, depth: int) -> None:
        # One place more, for what follows a chain that was verified whole: nothing.
        self.tokens = np.full((slots, depth + 1), _NONE, dtype=np.int64)
        self._length = np.zeros(slots, dtype=np.int64)

    def keep(self, slots: IntArray, lengths: IntArray, tokens: IntArray, drafted: IntArray) -> None:
        """Remember what was drafted in ``slots`` ``[m]`` at contexts of ``lengths`` ``[m]`` tokens:
        of ``tokens`` ``[m, k]`` the first ``drafted`` ``[m]``."""
        self.tokens[slots] = _NONE
        drawn = np.arange(tokens.shape[1]) < drafted[:, None]
        self.tokens[slots, : tokens.shape[1]] = np.where(drawn, tokens, _NONE)
        self._length[slots] = lengths

    def sent(self, slots: IntArray, batch: StepBatch) -> IntArray:
        """How many tokens ``[b]`` of these chains a batch in ``slots`` ``[b]`` verified. What a
        host put in of its own, where there were no drafts, says nothing of them."""
        ours = (slots >= 0) & (self.tokens[slots, 0] != _NONE)
        ours &= batch.lengths == self._length[slots] + batch.accepted + 1
        return np.where(ours, batch.drafted, 0)

    def compare(self, slots: IntArray, batch: StepBatch) -> IntArray:
        """For the requests ``[b]`` of a batch in ``slots`` ``[b]`` (-1 for none): 1 if the first
        token that was not verified was right, 0 if not, -1 if there is none or the target has not
        come so far. What the batch has come past is forgotten."""
        token = self.tokens[slots, batch.drafted]
        known = (slots >= 0) & batch.drafting
        asked = known & (token != _NONE) & (batch.accepted == batch.drafted)
        # The host may have started the request over.
        asked &= batch.lengths == self._length[slots] + batch.drafted + 1
        self.tokens[slots[known]] = _NONE
        return np.where(asked, (token == batch.newest).astype(np.int64), -1)

    def forget(self, slot: int) -> None:
        """The request in ``slot`` has ended."""
        self.tokens[slot] = _NONE
