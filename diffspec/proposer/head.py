# SPDX-License-Identifier: Apache-2.0
"""The EAGLE-3 head (arXiv 2503.01840) as a function over the loaded module's parts.

The host's own forward pass attends every row and rotates K before storing it. Ours needs K and V
of every row but attention for the sampled rows alone, so it calls the same parts itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftParts:
    """The callables of a one-layer EAGLE-3 draft, filled in by a host adapter.

    ``n`` rows throughout. A part may work in place on its arguments (fused norms do): callers pass
    tensors they no longer need.

    Attributes:
        embed: token ids ``[n]`` → ``[n, hidden]``.
        combine: auxiliary target features ``[n, aux · target_hidden]`` → ``[n, hidden]``.
        norm_embed: input norm of the embeddings.
        norm_feature: ``[n, hidden]`` → (normed, residual).
        qkv: ``[n, 2 · hidden]`` → ``[n, (query_heads + 2 · kv_heads) · head_dim]``.
        norm_q, norm_k: per-head norms ``[n, heads, head_dim]``, or None (Llama has none).
        output: attention output ``[n, query_heads · head_dim]`` → ``[n, hidden]``.
        norm_attention: (x, residual) → (normed sum, sum).
        mlp: ``[n, hidden]`` → ``[n, hidden]``.
        norm_final: (x, residual) → (normed sum, sum).
        logits: ``[n, hidden]`` → ``[n, draft_vocabulary]``.
        to_target: ``[draft_vocabulary]`` int64 target id of each draft id, or None when equal.
        feed_normed: the next draft step reads the normed output, not the sum before the norm.
    """

    embed: Callable[[Tensor], Tensor]
    combine: Callable[[Tensor], Tensor]
    norm_embed: Callable[[Tensor], Tensor]
    norm_feature: Callable[[Tensor], tuple[Tensor, Tensor]]
    qkv: Callable[[Tensor], Tensor]
    output: Callable[[Tensor], Tensor]
    norm_attention: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    mlp: Callable[[Tensor], Tensor]
    norm_final: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    logits: Callable[[Tensor], Tensor]
    to_target: Tensor | None
    query_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    feed_normed: bool = False
    norm_q: Callable[[Tensor], Tensor] | None = None
    norm_k: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """Unrotated Q and K heads, ``qk`` ``[n, query_heads + kv_heads, head_dim]``, so that one call
    can rotate both; ``k`` and ``v`` ``[n, kv_heads, head_dim]``; the rows' ``residual``
    ``[n, hidden]``."""

    qk: Tensor
    k: Tensor
    v: Tensor
    residual: Tensor


class DraftHead:
    """Runs a one-layer EAGLE-3 draft row by row, leaving attention to the caller."""

    def __init__(self, parts: DraftParts) -> None:
        self.parts = parts

    def project(self, token_ids: Tensor, features: Tensor) -> Projection:
        """Project rows to Q, K and V.

        Args:
            token_ids: ``[n]``, the token *after* each row's position.
            features: ``[n, hidden]``, combined target features, or the head's own last output.
        """
        p = self.parts
        normed, residual = p.norm_feature(features)
        qkv = p.qkv(torch.cat((p.norm_embed(p.embed(token_ids)), normed), dim=-1))
        heads = qkv.view(qkv.shape[0], -1, p.head_dim)
        both = p.query_heads + p.kv_heads
        qk, v = heads[:, :both], heads[:, both:]
        if p.norm_q is not None and p.norm_k is not None:
            q, k = qk[:, : p.query_heads], qk[:, p.query_heads :]
            qk = torch.cat((p.norm_q(q), p.norm_k(k)), dim=1)
        return Projection(qk, qk[:, p.query_heads :], v, residual)

    def finish(self, attention: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Everything after attention.

        Args:
            attention: ``[n, query_heads · head_dim]``.
            residual: ``[n, hidden]``; may be overwritten.

        Returns:
            (hidden for the logits, feature of the next draft step), both ``[n, hidden]``.
        """
        p = self.parts
        hidden, residual = p.norm_attention(p.output(attention), residual)
        hidden, total = p.norm_final(p.mlp(hidden), residual)
        return hidden, hidden if p.feed_normed else total

    def best_tokens(self, hidden: Tensor, sure: list[Tensor] | None = None) -> Tensor:
        """Most likely *target* token ids ``[n]`` int64; the logarithms ``[n]`` float32 of their
        probabilities are appended to ``sure``, if given."""
        logits = self.parts.logits(hidden)
        if sure is None:
            ids = logits.argmax(dim=-1)
        else:
            top, ids = torch.log_softmax(logits, dim=-1, dtype=torch.float32).max(dim=-1)
            sure.append(top)
        return ids if self.parts.to_target is None else self.parts.to_target[ids]
