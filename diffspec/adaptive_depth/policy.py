# SPDX-License-Identifier: Apache-2.0
"""The seat of the depth policy.

A policy sees, once per verification step, what was drafted and accepted, and answers with one
depth per request. :class:`FixedDepth` always drafts ``num_speculative_tokens``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


class DepthPolicy(Protocol):
    """Chooses how many tokens to draft for each request."""

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Learn from one verification step.

        Args:
            slots: ``[b]``, slot of each request that had at least one draft scheduled.
            drafted: ``[b]``, drafted tokens as scheduled (the host may have cut our proposal).
            accepted: ``[b]``, how many of them were accepted.
        """

    def depths(self, slots: IntArray, lengths: IntArray) -> IntArray:
        """Depth ``[b]`` for each request, given its slot and context length in tokens."""

    def forget(self, slot: int) -> None:
        """The request in ``slot`` has ended."""


class FixedDepth:
    """Drafts ``depth`` tokens for everyone, always."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Nothing to learn."""

    def depths(self, slots: IntArray, lengths: IntArray) -> IntArray:
        """The same depth ``[b]`` for each request."""
        return np.full(slots.shape, self.depth, dtype=np.int64)

    def forget(self, slot: int) -> None:
        """Nothing was kept."""
