# SPDX-License-Identifier: Apache-2.0
"""What the proposer has done since start-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from diffspec.adaptive_depth.policy import IntArray

#: Why a request's step has no drafts.
ZERO_REASONS = ("no_gain", "no_slot", "length_limit", "fault", "measuring", "not_ready", "unsure")
PARTS = ("verify", "plan", "draft", "retrieve", "rebuild", "ingest")


@dataclass(slots=True)
class Counters:
    """Monotonic counts.

    Attributes:
        depths: ``[K + 1]``, request-steps by the tokens proposed.
        zero: request-steps without drafts, by reason; together ``depths[0]``.
        cut: tokens drafted to be proposed and then not proposed, as the draft was unsure.
        scheduled, accepted: drafted tokens as the host scheduled them, and as it accepted them.
        rebuilds: working caches gathered anew, first ones included.
        retrievals: rebuilds for which the target's keys were scored.
        shadows, shadow_hits: tokens drafted in secret, and those that turned out right.
        seconds: by part of a step; ``retrieve`` is scoring and selecting, ``rebuild`` what then
            makes working caches current.
    """

    depths: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    zero: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ZERO_REASONS, 0))
    cut: int = 0
    scheduled: int = 0
    accepted: int = 0
    rebuilds: int = 0
    retrievals: int = 0
    shadows: int = 0
    shadow_hits: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @classmethod
    def of_depth(cls, depth: int) -> Counters:
        """Zeros for depths up to ``depth``."""
        return cls(depths=np.zeros(depth + 1, dtype=np.int64))

    def without(self, reasons: IntArray) -> None:
        """Count request-steps without drafts; ``reasons`` ``[n]`` are places in ZERO_REASONS."""
        for reason, count in enumerate(np.bincount(reasons).tolist()):
            self.zero[ZERO_REASONS[reason]] += count

    def flat(self) -> Mapping[str, float]:
        """What is reported of them, under the keys of ``diffspec.metrics``."""
        return {
            **{f"depth/{k}": float(n) for k, n in enumerate(self.depths.tolist())},
            **{f"zero/{reason}": float(n) for reason, n in self.zero.items()},
            **{f"seconds/{part}": s for part, s in self.seconds.items()},
            "drafted": float(self.scheduled),
            "accepted": float(self.accepted),
            "cut": float(self.cut),
            "shadow": float(self.shadows),
            "shadow_hit": float(self.shadow_hits),
            "retrievals": float(self.retrievals),
            "rebuilds": float(self.rebuilds),
        }
