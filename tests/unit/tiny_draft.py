# SPDX-License-Identifier: Apache-2.0
"""A small random EAGLE-3 head, twice: as torch parts for the core, and naively in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from diffspec.proposer.head import DraftParts
from tests.unit.gloo_ranks import WHOLE, Share
from tests.unit.naive import Array

HIDDEN, HEADS, KV_HEADS, DIM = 32, 4, 2, 8
AUX, TARGET_HIDDEN = 3, 8
VOCAB, DRAFT_VOCAB = 70, 40
SCALE, BASE = DIM**-0.5, 10000.0

SHAPES = {
    "embed": (VOCAB, HIDDEN),
    "combine": (HIDDEN, AUX * TARGET_HIDDEN),
    "qkv": ((HEADS + 2 * KV_HEADS) * DIM, 2 * HIDDEN),
    "output": (HIDDEN, HEADS * DIM),
    "gate": (48, HIDDEN),
    "up": (48, HIDDEN),
    "down": (HIDDEN, 48),
    "logits": (DRAFT_VOCAB, HIDDEN),
    "norm_embed": (HIDDEN,),
    "norm_feature": (HIDDEN,),
    "norm_attention": (HIDDEN,),
    "norm_final": (HIDDEN,),
}


class TinyDraft:
    """The weights, as float64 arrays that float32 represents exactly, and the naive head."""

    def __init__(self, seed: int, *, feed_normed: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.feed_normed = feed_normed
        self.w: dict[str, Array] = {}
        for name, shape in SHAPES.items():
            # Large enough for peaked attention and well-separated logits.
            w = 1 + 0.3 * rng.normal(size=shape) if len(shape) == 1 else rng.normal(size=shape)
            if len(shape) == 2 and name != "embed":
                w *= 1.5 * shape[1] ** -0.5
            self.w[name] = w.astype(np.float32).astype(np.float64)
        self.to_target = np.sort(rng.permutation(VOCAB)[:DRAFT_VOCAB])

    def project(self, token: int, feature: Array) -> tuple[Array, Array, Array, Array]:
        """q ``[HEADS, DIM]``, k and v ``[KV_HEADS, DIM]``, residual ``[HIDDEN]`` of one row."""
        w = self.w
        both = np.concatenate(
            (_norm(w["embed"][token], w["norm_embed"]), _norm(feature, w["norm_feature"]))
        )
        heads = (w["qkv"] @ both).reshape(-1, DIM)
        return heads[:HEADS], heads[HEADS : HEADS + KV_HEADS], heads[HEADS + KV_HEADS :], feature

    def combine(self, aux: Array) -> Array:
        """Combined features ``[HIDDEN]`` of one row."""
        combined: Array = self.w["combine"] @ aux
        return combined

    def finish(self, attention: Array, residual: Array) -> tuple[Array, Array]:
        """Logits ``[DRAFT_VOCAB]`` and next feature ``[HIDDEN]`` of one row."""
        w = self.w
        total = residual + w["output"] @ attention
        hidden = _norm(total, w["norm_attention"])
        gate = w["gate"] @ hidden
        total = total + w["down"] @ (gate / (1 + np.exp(-gate)) * (w["up"] @ hidden))
        normed = _norm(total, w["norm_final"])
        return w["logits"] @ normed, normed if self.feed_normed else total

    def parts(self, trip: Callable[[str], None], share: Share = WHOLE) -> DraftParts:
        """The same head in torch, or one rank's share of it; ``trip(name)`` runs first in
        ``combine``, ``qkv``, ``output`` and ``logits``.

        The fused norms work in place on both arguments, as a host's kernels do.
        """
        w = {name: torch.from_numpy(array).float() for name, array in self.w.items()}
        first, embedding = share.rows(w["embed"])
        _, w["logits"] = share.rows(w["logits"])
        for name in ("gate", "up"):
            _, w[name] = share.rows(w[name])
        for name in ("down", "output"):
            w[name] = share.rows(w[name].T)[1].T
        q, k, v = w["qkv"].view(-1, DIM, 2 * HIDDEN).split((HEADS, KV_HEADS, KV_HEADS))
        heads, groups = share.heads(HEADS), share.heads(KV_HEADS)
        w["qkv"] = torch.cat((q[heads], k[groups], v[groups])).flatten(0, 1)

        def linear(name: str) -> Callable[[Tensor], Tensor]:
            def apply(x: Tensor) -> Tensor:
                trip(name)
                return F.linear(x, w[name])

            return apply

        def norm(name: str) -> Callable[[Tensor], Tensor]:
            return lambda x: F.rms_norm(x, (HIDDEN,), w[name], 1e-6)

        def fused(name: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
            def apply(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
                residual.add_(x)
                return x.copy_(norm(name)(residual)), residual

            return apply

        def mlp(x: Tensor) -> Tensor:
            gated = F.silu(F.linear(x, w["gate"])) * F.linear(x, w["up"])
            return share.summed(F.linear(gated, w["down"]))

        def embed(ids: Tensor) -> Tensor:
            mine = (ids >= first) & (ids < first + len(embedding))
            rows = F.embedding(torch.where(mine, ids - first, 0), embedding)
            return share.summed(rows * mine.unsqueeze(-1))

        return DraftParts(
            embed=embed,
            combine=linear("combine"),
            norm_embed=norm("norm_embed"),
            norm_feature=lambda x: (norm("norm_feature")(x), x),
            qkv=linear("qkv"),
            output=lambda x: share.summed(linear("output")(x)),
            norm_attention=fused("norm_attention"),
            mlp=mlp,
            norm_final=fused("norm_final"),
            logits=lambda x: share.joined(linear("logits")(x)),
            to_target=torch.from_numpy(self.to_target),
            query_heads=share.count(HEADS),
            kv_heads=share.count(KV_HEADS),
            head_dim=DIM,
            scale=SCALE,
            feed_normed=self.feed_normed,
        )


def _norm(x: Array, weight: Array) -> Array:
    scaled: Array = x / np.sqrt(np.mean(x * x) + 1e-6) * weight
    return scaled
