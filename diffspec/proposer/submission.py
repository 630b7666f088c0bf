# SPDX-License-Identifier: Apache-2.0
"""What becomes of drafted chains: submitted, cut, or kept in secret."""

from __future__ import annotations

import numpy as np

from diffspec.proposer.batch import IntArray, StepBatch
from diffspec.proposer.chain import Chains
from diffspec.proposer.counters import Counters
from diffspec.proposer.slots import SlotTable
from diffspec.proposer.tails import Tails


class Submission:
    """Takes the chains of a step.

    Attributes:
        tails: what was drafted last.
        depth: deepest chain of the step that was drafted in order to be submitted.
        shadow_depth: its deepest secret chain.
        secrets: how many secret chains it has.
    """

    def __init__(self, slots: SlotTable, counters: Counters) -> None:
        self.tails = Tails(slots.count, len(counters.depths) - 1)
        self._slots, self._counters = slots, counters
        self.depth = self.shadow_depth = self.secrets = 0

    def begin(self) -> None:
        """A step begins."""
        self.depth = self.shadow_depth = self.secrets = 0

    def take(
        self,
        batch: StepBatch,
        members: IntArray,
        slots: IntArray,
        planned: IntArray,
        chains: Chains,
        drafts: list[list[int]],
    ) -> IntArray:
        """Put what is submitted of ``chains`` into ``drafts``, and remember the rest.

        Args:
            members: ``[m]``, the requests in the batch, which are in ``slots`` ``[m]``.
            planned: ``[m]``, tokens drafted to be submitted; 0 for a secret chain.

        Returns:
            The members of whose chain nothing is submitted, though that was planned.
        """
        tokens, drafted = chains.tokens, chains.drafted
        submit = np.where(planned > 0, chains.submit, 0)
        lengths = batch.lengths[members]
        for index, row, depth in zip(members.tolist(), tokens, submit.tolist(), strict=True):
            drafts[index] = row[:depth]
        if (earnest := np.flatnonzero(planned > 0)).size:
            known = np.array(tokens)[earnest]
            self.tails.keep(slots[earnest], lengths[earnest], known, drafted[earnest])
        if (secret := np.flatnonzero(planned == 0)).size:
            secrets = [tokens[i][: drafted[i]] for i in secret]
            self._counters.shadows += int(drafted[secret].sum())
            self.shadow_depth, self.secrets = int(drafted[secret].max()), len(secrets)
            self._slots.keep_shadows(slots[secret], lengths[secret], secrets)
        self.depth = int(drafted.max(where=planned > 0, initial=0))
        self._counters.cut += int((drafted - submit)[planned > 0].sum())
        unsure: IntArray = members[(submit == 0) & (planned > 0)]
        return unsure
