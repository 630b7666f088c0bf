# SPDX-License-Identifier: Apache-2.0
"""Between what depths there is a choice at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diffspec.adaptive_depth.policy import IntArray


@dataclass(frozen=True, slots=True)
class DepthLimits:
    """What bounds the choice.

    Attributes:
        depth: K.
        least: what every request drafts at least; 1 on targets with recurrent state.
        allowed: the only depths there are, the same for all requests of a step, on a host that
            captured graphs for these; None for any.
        long_context, long_depth: a new request of at least so many tokens drafts at most so many;
            under ``allowed``, where it cannot differ from the others, only while all are such.
    """

    depth: int
    least: int = 0
    allowed: tuple[int, ...] | None = None
    long_context: int = 1 << 62
    long_depth: int = 1

    @property
    def drafts(self) -> bool:
        """Whether there is any depth but 0."""
        return self.allowed is None or any(self.allowed)

    def caps(self, lengths: IntArray, room: IntArray, new: npt.NDArray[np.bool_]) -> IntArray:
        """Most tokens ``[m]`` each request may draft.

        Args:
            lengths: ``[m]``, context lengths in tokens.
            room: ``[m]``, tokens there is context for.
            new: ``[m]``, whether a request has shown little yet.
        """
        cautious = (lengths >= self.long_context) & new
        caps: IntArray
        if self.allowed is None:
            caps = np.minimum(room, np.where(cautious, self.long_depth, self.depth))
            return caps
        # One request with fewer tokens and the whole step has no graph: where not all have room
        # for a depth, none drafts so deep, unless there is nothing less.
        most = min(int(room.min()), self.long_depth if cautious.all() else self.depth)
        least = min(self.allowed)
        caps = np.minimum(room, max((d for d in self.allowed if d <= most), default=least))
        return caps
