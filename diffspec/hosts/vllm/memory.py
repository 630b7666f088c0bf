# SPDX-License-Identifier: Apache-2.0
"""How many requests can draft at once, and the buffers that takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from diffspec.adaptive_depth.adaptive import AdaptiveDepth
from diffspec.adaptive_depth.interval import RetrievalInterval
from diffspec.adaptive_depth.limits import DepthLimits
from diffspec.adaptive_depth.policy import DepthPolicy, FixedDepth
from diffspec.compact_kv.kernels import attention_for, kernels_for
from diffspec.compact_kv.rope import LocalRope
from diffspec.compact_kv.working import WorkingCache
from diffspec.proposer.cycle import DraftingCycle
from diffspec.proposer.head import DraftHead
from diffspec.proposer.pending import PendingRows
from diffspec.proposer.ranked_cycle import RankedCycle
from diffspec.proposer.ranks import Collectives, Ranks
from diffspec.proposer.working_set import Geometry, WorkingSet
from diffspec.retrieval.scoring import ChunkScorer
from diffspec.retrieval.selection import SelectionPlan
from diffspec.settings import DiffSpecSettings

#: Share of the memory vLLM was given that working caches may take.
SLOT_SHARE = 0.02
#: Requests retrieved in one pass; more are done in several.
RETRIEVAL_GROUP = 8
#: Steps of as many requests whose rows can wait while nobody drafts.
WAITING_STEPS, WAITING_REQUESTS = 64, 8


def slot_count(*, memory: int, slot_bytes: int, max_num_seqs: int) -> int:
    """Slots that fit ``SLOT_SHARE`` of ``memory`` bytes; at least 1, at most ``max_num_seqs``."""
    return max(1, min(max_num_seqs, int(memory * SLOT_SHARE) // slot_bytes))


def _fewest(slots: int, ranks: Ranks | None) -> int:
    """What the rank with the least memory has: all ranks need the same slots."""
    if ranks is None:
        return slots
    every = np.zeros(ranks.size, dtype=np.int64)
    every[ranks.rank] = slots
    ranks.add(every)
    return int(every.min())


def build_cycle(
    settings: DiffSpecSettings,
    head: DraftHead,
    rope: LocalRope,
    *,
    depth: int,
    memory: int,
    max_num_seqs: int,
    max_model_len: int,
    scored_layer: Any,
    block_size: int,
    feature_width: int,
    allowed_depths: tuple[int, ...] | None,
    least_depth: int,
    ranks: Ranks | None,
    hidden: int,
    dtype: torch.dtype,
    device: torch.device,
) -> DraftingCycle:
    """Allocate every buffer and put the proposer together; pages are bound later.

    Args:
        depth: K, the most drafted tokens per step.
        memory: bytes vLLM was given on this device.
        block_size: tokens per page at the granularity of the host's block tables.
        feature_width: elements of a row's auxiliary target features.
        allowed_depths: the depths the host has decode graphs for; None for any.
        least_depth: what every request must draft at least.
        ranks: the tensor-parallel ranks; None where there is one. Buffers hold this rank's heads.
        hidden: elements of a row of the draft.
    """
    together = None
    if ranks is not None:
        together = Collectives(ranks, head.parts, hidden=hidden, dtype=dtype, device=device)
        head = DraftHead(together.parts)
    parts = head.parts
    size = WorkingCache.slot_bytes(
        budget=settings.token_budget, heads=parts.kv_heads, head_dim=parts.head_dim, dtype=dtype
    )
    slots = slot_count(memory=memory, slot_bytes=size, max_num_seqs=max_num_seqs)
    working = WorkingCache(
        slots=_fewest(slots, ranks),
        budget=settings.token_budget,
        heads=parts.kv_heads,
        head_dim=parts.head_dim,
        dtype=dtype,
        device=device,
        rope=rope,
        kernels=attention_for(device),
        query_heads=parts.query_heads,
    )
    scorer = ChunkScorer(
        block_size=block_size,
        query_heads=scored_layer.num_heads,
        kv_heads=scored_layer.num_kv_heads,
        head_dim=scored_layer.head_size,
        dtype=dtype,
        scale=scored_layer.impl.scale,
        chunk_size=settings.chunk_size,
        max_model_len=max_model_len,
        max_requests=min(RETRIEVAL_GROUP, max_num_seqs),
        device=device,
        reduce=None if together is None else together.add_masses,
        total_query_heads=scored_layer.num_heads * (1 if ranks is None else ranks.size),
        kernels=kernels_for(device),
    )
    geometry = Geometry(
        chunk=settings.chunk_size,
        budget=settings.token_budget,
        interval=settings.retrieval_interval,
        depth=depth,
        max_model_len=max_model_len,
    )
    plan = SelectionPlan(
        sink=1,
        window=settings.window_chunks(),
        picks=settings.pick_chunks(depth),
        successors=settings.successor_chunks(depth),
    )
    # A selection follows a passage as far as its successor chunks go, if it has room for any.
    reach = plan.successors * settings.chunk_size if plan.picks > plan.successors else 0
    interval = RetrievalInterval(
        working.k.shape[0],
        interval=settings.retrieval_interval,
        reach=reach if settings.adaptive_profile else None,
    )
    working_set = WorkingSet(geometry, plan, working, scorer)
    policy: DepthPolicy = FixedDepth(depth)
    if settings.adaptive_profile and (ranks is None or ranks.rank == 0):
        limits = DepthLimits(
            depth,
            least=least_depth,
            allowed=allowed_depths,
            long_context=settings.long_context_threshold,
            long_depth=settings.long_context_depth,
        )
        policy = AdaptiveDepth(working.k.shape[0], limits)
    waiting = WAITING_STEPS * min(max_num_seqs, WAITING_REQUESTS)
    pending = PendingRows(waiting, feature_width, dtype, device)
    cycle = (head, working_set, policy, interval, pending)
    return DraftingCycle(*cycle) if together is None else RankedCycle(together, *cycle)
