# SPDX-License-Identifier: Apache-2.0
"""vLLM's loaded EAGLE-3 module as :class:`DraftParts`, checked against its own forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diffspec.compact_kv.rope import LocalRope
from diffspec.hosts.surface import HostError
from diffspec.hosts.vllm import lean
from diffspec.proposer.head import DraftHead, DraftParts

#: Largest difference tolerated between our composition and the module's own output, relative to
#: the output's largest element. The operations are the same ones; only their grouping may differ.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}

_LAYER_PARTS = (
    "input_layernorm",
    "hidden_norm",
    "_residual_norm",
    "self_attn",
    "post_attention_layernorm",
    "mlp",
)
_ATTENTION_PARTS = ("qkv_proj", "o_proj", "rotary_emb", "attn", "scaling", "q_size", "kv_size")
_MODEL_PARTS = ("logits_processor", "lm_head", "combine_hidden_states", "model")


def draft_layer(model: Any) -> Any:
    """The draft's only decoder layer.

    Raises:
        HostError: a part this plugin calls is missing, or there is not exactly one layer.
    """
    name = type(model).__name__
    layers: Any = getattr(getattr(model, "model", None), "layers", [])
    if len(layers) != 1:
        raise HostError(f"the draft ({name}) has {len(layers)} layers; DiffSpec needs exactly 1")
    layer = layers[0]
    missing = [p for p in _MODEL_PARTS if not hasattr(model, p)]
    missing += [f"model.{p}" for p in ("embed_tokens", "norm") if not hasattr(model.model, p)]
    missing += [f"layers[0].{p}" for p in _LAYER_PARTS if not hasattr(layer, p)]
    attention = getattr(layer, "self_attn", None)
    missing += [f"self_attn.{p}" for p in _ATTENTION_PARTS if not hasattr(attention, p)]
    if missing:
        raise HostError(
            f"the draft class {name} lacks {', '.join(missing)}, which DiffSpec calls; "
            "supported are vLLM's Eagle3LlamaForCausalLM and Eagle3Qwen3ForCausalLM"
        )
    return layer


def build_parts(model: Any) -> DraftParts:
    """Collect the parts of a loaded EAGLE-3 module.

    Raises:
        HostError: see :func:`draft_layer`.
    """
    layer = draft_layer(model)
    attention = layer.self_attn
    head_dim = attention.head_dim

    def per_head(norm: Any) -> Any:
        return None if norm is None else lambda x: norm(x.contiguous())

    return DraftParts(
        embed=model.model.embed_tokens,
        combine=model.combine_hidden_states,
        norm_embed=lean.norm(layer.input_layernorm),
        norm_feature=_feature_norm(layer),
        qkv=lean.linear(attention.qkv_proj),
        output=lean.linear(attention.o_proj),
        norm_attention=lean.norm_sum(layer.post_attention_layernorm),
        mlp=lean.mlp(layer.mlp),
        norm_final=lean.norm_sum(model.model.norm),
        logits=lambda x: model.logits_processor(model.lm_head, x),
        to_target=_target_ids(model),
        query_heads=attention.q_size // head_dim,
        kv_heads=attention.kv_size // head_dim,
        head_dim=head_dim,
        scale=attention.scaling,
        feed_normed=bool(getattr(model.model, "norm_output", False)),
        norm_q=per_head(getattr(attention, "q_norm", None)),
        norm_k=per_head(getattr(attention, "k_norm", None)),
    )


def _feature_norm(layer: Any) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Normed feature and residual, in the order this draft was trained with."""
    hidden_norm = lean.norm(layer.hidden_norm)
    name = layer._residual_norm.__name__
    if name == "_norm_after_residual":
        return lambda x: (hidden_norm(x), x)
    if name == "_norm_before_residual":
        return lambda x: (normed := hidden_norm(x), normed)
    return lambda x: layer._residual_norm(hidden_states=x)


def _target_ids(model: Any) -> Tensor | None:
    offsets = getattr(model, "draft_id_to_target_id", None)
    if offsets is None or not bool(offsets.any()):
        return None
    ids: Tensor = torch.arange(offsets.shape[0], device=offsets.device) + offsets.detach()
    return ids


#: (rotary embedding, positions ``[n]``, k ``[n, width]``) → rotated k.
Rotate = Callable[[Any, Tensor, Tensor], Tensor]


def _own_rotation(rotary: Any, positions: Tensor, k: Tensor) -> Tensor:
    # Rotary kernels work in place: the module gets copies.
    rotated: Tensor = rotary(positions, k.clone(), k.clone())[1]
    return rotated


def build_rope(
    model: Any, positions: int, dtype: torch.dtype, rotate: Rotate | None = None
) -> LocalRope:
    """Local rotary positions 0…``positions``-1 from the draft's own table.

    ``rotate`` is how the rotary embedding is asked for comparison; None calls it as the draft does.

    Raises:
        HostError: the draft rotates by other mathematics than a table of cosines and sines, or
            its table is shorter than ``positions``.
    """
    attention = draft_layer(model).self_attn
    rotary = attention.rotary_emb
    if not hasattr(rotary, "cos_sin_cache") or rotary.cos_sin_cache.shape[0] < positions:
        raise HostError(
            f"the draft's rotary embedding {type(rotary).__name__} has no table of "
            f"{positions} positions"
        )
    rope = LocalRope(rotary.cos_sin_cache[:positions], neox_style=rotary.is_neox_style, dtype=dtype)
    head_dim = attention.head_dim
    device = rotary.cos_sin_cache.device
    at = torch.arange(0, positions, max(1, positions // 7), device=device)
    k = torch.randn(
        (at.shape[0], attention.kv_size // head_dim, head_dim),
        generator=torch.Generator().manual_seed(0),
    ).to(device, dtype)
    theirs = (rotate or _own_rotation)(rotary, at, k.flatten(1)).view_as(k)
    _compare("rotary embedding", type(rotary).__name__, rope.rotate(k, at), theirs)
    return rope


@torch.inference_mode()
def check_parts(model: Any, head: DraftHead, dtype: torch.dtype) -> None:
    """Show that our composition of the parts is the module's own forward pass.

    A row that attends itself alone gets its own V back whatever the positions, so for that row
    the module's result is known without the host's attention: it is made to return V.

    Raises:
        HostError: the two results differ.
    """
    layer, parts = draft_layer(model), head.parts
    device = model.model.embed_tokens.weight.device
    hidden = model.model.embed_tokens.weight.shape[-1]
    ids = torch.arange(3, device=device)
    generator = torch.Generator().manual_seed(0)
    feature = torch.randn((3, hidden), generator=generator).to(device, dtype)
    group = parts.query_heads // parts.kv_heads

    def attend_self(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return v.view(-1, parts.kv_heads, parts.head_dim).repeat_interleave(group, 1).flatten(1)

    attention = layer.self_attn.attn
    attention.forward = attend_self
    try:
        out = layer(
            positions=ids, embeds=parts.embed(ids), hidden_states=feature.clone(), residual=None
        )
    finally:
        del attention.forward
    theirs, theirs_feature = model.model.norm(*out)
    if parts.feed_normed:
        theirs_feature = theirs
    new = head.project(ids, feature.clone())
    ours, ours_feature = head.finish(
        new.v.repeat_interleave(group, 1).flatten(1), new.residual.clone()
    )
    name = type(model).__name__
    _compare("output", name, ours, theirs)
    _compare("next feature", name, ours_feature, theirs_feature)


def _compare(what: str, name: str, ours: Tensor, theirs: Tensor) -> None:
    error = float((ours.float() - theirs.float()).abs().max())
    allowed = _TOLERANCE.get(theirs.dtype, 1e-4) * max(1.0, float(theirs.float().abs().max()))
    if not error <= allowed:
        raise HostError(
            f"the {what} that DiffSpec computes from the parts of {name} differs from its own by "
            f"{error:.2e} (allowed {allowed:.2e}); this draft class is not supported"
        )
