# SPDX-License-Identifier: Apache-2.0
"""From chunk masses to the chunks the draft attends.

The sink (first chunk) and the window (newest chunks) are always taken; the rest of the budget
goes to the heaviest chunks and to the successors of the very heaviest, because reading moves on:
within one retrieval interval the source of a copied passage crosses chunk borders.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: A present chunk gives way only to one this much heavier; keeps selections stable.
STICKINESS = 1.1


@dataclass(frozen=True, slots=True)
class SelectionPlan:
    """How many chunks of each kind make up a selection (all counts in chunks).

    Attributes:
        sink: chunks at the start of the context.
        window: newest chunks, the partial tail chunk included.
        picks: chunks chosen by mass, successors included.
        successors: how many chunks after a heavy pick are wanted with it.
    """

    sink: int
    window: int
    picks: int
    successors: int

    @property
    def total(self) -> int:
        """Most chunks in a selection."""
        return self.sink + self.window + self.picks

    @property
    def heavy(self) -> int:
        """Picks that bring their successors: at most about half of the picks go that way."""
        return max(1, self.picks // (2 * (1 + self.successors)))


def select_chunks(
    masses: Tensor,
    chunks: Tensor,
    plan: SelectionPlan,
    *,
    present: Tensor | None = None,
    blocked: Tensor | None = None,
) -> Tensor:
    """Choose each request's chunks.

    Args:
        masses: ``[r, c]`` float32, non-negative.
        chunks: ``[r]`` int64, chunks in each request's context (at most c).
        plan: how many of which.
        present: ``[r, c]`` bool, chunks in the working cache now.
        blocked: ``[r, c]`` bool, chunks that must not be selected (holes).

    Returns:
        ``[r, plan.total]`` int64 chunk numbers, ascending in each row, padded at the end with c.
        While a context has no more than ``plan.total`` chunks, all unblocked ones are selected.
    """
    count = masses.shape[1]
    number = torch.arange(count, device=masses.device)
    ends = chunks.unsqueeze(-1)
    allowed = number < ends
    if blocked is not None:
        allowed = allowed & ~blocked
    fixed = allowed & ((number < plan.sink) | (number >= ends - plan.window))
    candidate = allowed & ~fixed

    weight = masses if present is None else torch.where(present, masses * STICKINESS, masses)
    weight = torch.where(candidate, weight, -torch.inf)
    picks = min(plan.picks, count)
    heavy = weight.topk(min(plan.heavy, count), dim=-1).indices
    # Ranks above any mass: first the heavy picks, then their successors, nearest first.
    ahead = torch.arange(plan.successors + 1, device=masses.device)
    followers = (heavy.unsqueeze(-1) + ahead).clamp_(max=count - 1).flatten(1)
    boost = (2.0 * (plan.successors + 1 - ahead)).repeat(heavy.shape[1]).expand_as(followers)
    rank = weight + torch.zeros_like(weight).scatter_reduce_(1, followers, boost, "amax")
    best = rank.topk(picks, dim=-1)
    picked = torch.zeros_like(candidate).scatter_(1, best.indices, best.values > -torch.inf)

    chosen = torch.where(fixed | picked, number, count).sort(dim=-1).values
    if count < plan.total:
        chosen = torch.nn.functional.pad(chosen, (0, plan.total - count), value=count)
    return chosen[:, : plan.total]
