# SPDX-License-Identifier: Apache-2.0
"""Drafting a chain of tokens for each of some requests, all in one pass per draft step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffspec.compact_kv.working import WorkingCache
from diffspec.proposer.batch import IntArray, on_device
from diffspec.proposer.head import DraftHead, Projection
from diffspec.proposer.slots import first_if_consecutive


def draft_chain(
    head: DraftHead,
    working: WorkingCache,
    projection: Projection,
    last: IntArray,
    slots: IntArray,
    rows: IntArray,
    depths: IntArray,
) -> Tensor:
    """Draft for ``m`` requests.

    Args:
        projection: of the step's rows.
        last: ``[m]``, each request's newest row in it.
        slots: ``[m]``, ascending.
        rows: ``[m]``, committed rows of their working caches.
        depths: ``[m]``, tokens to draft, at least 1 each; a request takes no part in draft steps
            past its own.

    Returns:
        ``[m, max(depths)]`` int64 token ids; past a request's depth they mean nothing.
    """
    device = working.k.device
    at, slot, counts = (on_device(a, device) for a in (last, slots, rows))
    heads, scale = head.parts.query_heads, head.parts.scale
    # The newest committed row is its own first query; later queries sit on scratch rows.
    q = working.rope.rotate(projection.qk[at, :heads], counts - 1)
    residual = projection.residual[at]
    longest, dense = int(rows.max()), first_if_consecutive(slots)
    deepest, even = int(depths.max()), bool((depths == depths[0]).all())
    alive = np.arange(len(slots))
    tokens: list[Tensor] = []
    for step in range(deepest):
        attention = working.attend(q, slot, counts, longest + step, scale, dense)
        hidden, feature = head.finish(attention, residual)
        best = head.best_tokens(hidden)
        tokens.append(best if even else _spread(best, alive, len(depths)))
        if step + 1 == deepest:
            break
        if not even and (depths[alive] <= step + 1).any():
            keep = np.flatnonzero(depths[alive] > step + 1)
            alive, chosen = alive[keep], on_device(keep, device)
            best, feature, slot, counts = (t[chosen] for t in (best, feature, slot, counts))
            longest, dense = int(rows[alive].max()), first_if_consecutive(slots[alive])
        new = head.project(best, feature)
        turned = working.rope.rotate(new.qk, counts)
        q, k = turned[:, :heads], turned[:, heads:]
        if len(alive) == 1:
            working.put_one(dense, longest + step, k[0], new.v[0])
        else:
            working.put(slot, counts, k, new.v)
        residual = new.residual
        counts = counts + 1
    return torch.stack(tokens, dim=1)


def _spread(tokens: Tensor, alive: IntArray, count: int) -> Tensor:
    """The tokens of the requests that still draft, at their places among all ``[count]``."""
    if len(alive) == count:
        return tokens
    return tokens.new_zeros(count).index_copy_(0, on_device(alive, tokens.device), tokens)
