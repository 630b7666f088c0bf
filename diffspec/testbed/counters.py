# SPDX-License-Identifier: Apache-2.0
"""vLLM's speculative decoding counters as numbers that can be subtracted and read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpecCounters:
    """Counts summed over engines; all in tokens but ``drafts``.

    A *draft* is a verification step that had at least one drafted token. ``accepted_at[i]`` counts
    drafts whose position i (from 0) was accepted.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()

    def __sub__(self, earlier: SpecCounters) -> SpecCounters:
        before = earlier.accepted_at + (0,) * (len(self.accepted_at) - len(earlier.accepted_at))
        return SpecCounters(
            drafts=self.drafts - earlier.drafts,
            draft_tokens=self.draft_tokens - earlier.draft_tokens,
            accepted=self.accepted - earlier.accepted,
            accepted_at=tuple(a - b for a, b in zip(self.accepted_at, before, strict=True)),
        )

    @property
    def accepted_share(self) -> float:
        """Accepted tokens over drafted ones, however deep drafts were; 0 without drafts."""
        return self.accepted / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / drafts; ``None`` where nothing was drafted."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Unconditional acceptance of each position; empty where nothing was drafted."""
        return tuple(n / self.drafts for n in self.accepted_at) if self.drafts else ()
