# SPDX-License-Identifier: Apache-2.0
"""Parts of DiffSpec taken out or held still in a running engine, for comparison.

No retrieval, a pinned depth, a draft that is wrong for a while, a drafter that does nothing, for
good or for some steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from diffspec.adaptive_depth.adaptive import AdaptiveDepth
from diffspec.adaptive_depth.limits import DepthLimits
from diffspec.adaptive_depth.policy import DepthPolicy, FixedDepth
from diffspec.proposer.cycle import DraftingCycle
from diffspec.proposer.working_set import MassFunction, WorkingSet


@contextmanager
def newest_chunks(working_set: WorkingSet) -> Iterator[None]:
    """Pick the newest chunks as long as the block runs: a sink and a sliding window of the same
    budget."""
    by_mass = working_set.masses
    working_set.masses = _newest_first(working_set.geometry.chunk)
    try:
        yield
    finally:
        working_set.masses = by_mass


def _newest_first(chunk: int) -> MassFunction:
    """Masses that rise with the chunk number, for chunks of ``chunk`` tokens."""

    def masses(query: Tensor, table: Tensor, lengths: Tensor, longest: int) -> Tensor:
        count = -(-longest // chunk)
        rising = torch.arange(1, count + 1, dtype=torch.float32, device=lengths.device)
        return rising.expand(len(lengths), -1) / count

    return masses


#: Instead of a depth: the adaptive policy is at work, with nothing to choose from but 0.
HELD_AT_ZERO = "held at 0"


@contextmanager
def pinned_depth(cycle: DraftingCycle, depth: int | str) -> Iterator[None]:
    """Draft ``depth`` tokens for every request as long as the block runs, or
    :data:`HELD_AT_ZERO`. No request may outlive the block."""
    adaptive, slots = cycle.policy, cycle.slots.count
    policy: DepthPolicy
    if depth == HELD_AT_ZERO:
        policy = AdaptiveDepth(slots, DepthLimits(cycle.geometry.depth, allowed=(0,)))
    else:
        policy = FixedDepth(int(depth))
    cycle.policy = policy
    try:
        yield
    finally:
        cycle.policy = adaptive
        for slot in range(slots):
            adaptive.forget(slot)


@contextmanager
def wrong_drafts(
    cycle: DraftingCycle, generated: Callable[[], int], first: int, last: int
) -> Iterator[None]:
    """Every draft is another token than the draft's best while ``generated()`` is in
    ``first``..``last``, as long as the block runs."""
    best = cycle.head.best_tokens

    def tokens(hidden: Tensor, sure: list[Tensor] | None = None) -> Tensor:
        right = best(hidden, sure)
        # Any other token that exists; 1 and 2 do everywhere.
        return torch.where(right == 1, 2, 1) if first <= generated() < last else right

    cycle.head.best_tokens = tokens  # type: ignore[method-assign]
    try:
        yield
    finally:
        del cycle.head.best_tokens


def silence(drafter: Any) -> None:
    """Make a host's drafter propose nothing, at no cost: the floor of any drafter there. The host
    must run it unpadded (``disable_padded_drafter_batch``), or it expects a tensor."""

    def propose(*args: Any, common_attn_metadata: Any, **kwargs: Any) -> list[list[int]]:
        return [[] for _ in range(common_attn_metadata.num_reqs)]

    drafter.propose = propose


@contextmanager
def silence_switch(
    session: Any, outside: Callable[[Callable[[], None]], None]
) -> Iterator[Callable[[bool], None]]:
    """A switch for a running engine of DiffSpec's, which goes off at the block's end: while it is
    on, the drafter is the host's own, which proposes nothing, and our query tap is out.

    Rows of decode steps in silence are put aside all the same, so that nothing is missing
    afterwards, and requests that have ended are taken note of. Those of a prompt are not: it should
    not be read in silence.

    Args:
        outside: calls what it is given, outside of any measurement.
    """
    drafter, impl, cycle = session.drafter, session.tap.impl, session.cycle
    bound = {name: vars(drafter)[name] for name in session.BOUND}
    tapped = impl.forward

    def propose(
        *args: Any,
        target_hidden_states: Tensor,
        next_token_ids: Tensor,
        common_attn_metadata: Any,
        **kwargs: Any,
    ) -> list[list[int]]:
        b = common_attn_metadata.num_reqs
        rows = next_token_ids[:b], target_hidden_states[:b], common_attn_metadata.slot_mapping[:b]

        def keep() -> None:
            if not cycle._pending.put(*rows):
                cycle.flush()
                cycle._pending.put(*rows)

        if common_attn_metadata.num_actual_tokens == b:
            outside(keep)
        return [[] for _ in range(b)]

    def departures(scheduler_output: Any) -> None:
        if scheduler_output.finished_req_ids:
            type(session).before_step(session, scheduler_output)

    def switch(on: bool) -> None:
        for name, method in bound.items():
            setattr(drafter, name, session._host[name] if on else method)
        impl.forward = session.tap._forward if on else tapped
        vars(session).pop("before_step", None)
        if on:
            drafter.propose = propose
            session.before_step = departures

    try:
        yield switch
    finally:
        switch(False)
