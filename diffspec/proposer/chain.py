# SPDX-License-Identifier: Apache-2.0
"""Drafting a chain of tokens for each of some requests, all in one pass per draft step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffspec.adaptive_depth.policy import ChainGate
from diffspec.compact_kv.working import WorkingCache
from diffspec.proposer.batch import IntArray, on_device
from diffspec.proposer.head import DraftHead, Projection
from diffspec.proposer.slots import first_if_consecutive


@dataclass(frozen=True, slots=True)
class Chains:
    """What was drafted for ``m`` requests.

    Attributes:
        tokens: of each, as many as were drafted for the deepest one; past ``drafted`` they mean
            nothing.
        drafted: ``[m]``.
        submit: ``[m]``, how many of them to submit, if they were not drafted in secret.
    """

    tokens: list[list[int]]
    drafted: IntArray
    submit: IntArray


def draft_chain(
    head: DraftHead,
    working: WorkingCache,
    projection: Projection,
    last: IntArray,
    slots: IntArray,
    rows: IntArray,
    depths: IntArray,
    gate: ChainGate | None = None,
    *,
    may_stop: bool = False,
) -> Chains:
    """Draft for ``m`` requests.

    Args:
        projection: of the step's rows.
        last: ``[m]``, each request's newest row in it.
        slots: ``[m]``, ascending.
        rows: ``[m]``, committed rows of their working caches.
        depths: ``[m]``, tokens to draft, at least 1 each; a request takes no part in draft steps
            past its own.
        gate: told how sure the draft is, and decides how much is submitted; all if None.
        may_stop: ask it after every draft step whether to go on, where the CPU drafts. Elsewhere
            that would wait for the device: the host reads tokens and confidences once, at the end.
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
    sure: list[Tensor] = []
    ask = gate if may_stop and device.type == "cpu" else None
    for step in range(deepest):
        attention = working.attend(q, slot, counts, longest + step, scale, dense)
        hidden, feature = head.finish(attention, residual)
        best = head.best_tokens(hidden) if gate is None else head.best_tokens(hidden, sure)
        if even:
            tokens.append(best)
        else:
            tokens.append(_spread(best, alive, len(depths)))
            sure[-1:] = [_spread(last_sure, alive, len(depths)) for last_sure in sure[-1:]]
        if step + 1 == deepest or (ask is not None and ask.stop(sure[-1].numpy())):
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
    return _read(tokens, sure, np.minimum(depths, len(tokens)), gate)


def _read(
    tokens: list[Tensor], sure: list[Tensor], drafted: IntArray, gate: ChainGate | None
) -> Chains:
    """Wait for the device, once."""
    if gate is None:
        return Chains(torch.stack(tokens, dim=1).tolist(), drafted, drafted)
    # Confidences travel with the token ids, bit by bit.
    bits = torch.stack(sure, dim=1).view(torch.int32)
    packed = torch.cat((torch.stack(tokens, dim=1), bits), dim=1).cpu().numpy()
    count = len(tokens)
    confidences = packed[:, count:].astype(np.int32).view(np.float32)
    return Chains(packed[:, :count].tolist(), drafted, gate.cut(drafted, confidences))


def _spread(tokens: Tensor, alive: IntArray, count: int) -> Tensor:
    """The tokens of the requests that still draft, at their places among all ``[count]``."""
    if len(alive) == count:
        return tokens
    return tokens.new_zeros(count).index_copy_(0, on_device(alive, tokens.device), tokens)
