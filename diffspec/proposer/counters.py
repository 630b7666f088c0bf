# SPDX-License-Identifier: Apache-2.0
"""What the proposer has done since start-up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Monotonic counts.

    Attributes:
        drafted: tokens proposed (the host may schedule fewer).
        rebuilds: working caches gathered anew, first ones included.
        retrievals: rebuilds for which the target's keys were scored.
        no_slot: request-steps without drafts because every slot was taken.
    """

    drafted: int = 0
    rebuilds: int = 0
    retrievals: int = 0
    no_slot: int = 0
