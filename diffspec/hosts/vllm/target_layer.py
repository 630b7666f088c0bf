# SPDX-License-Identifier: Apache-2.0
"""Which of the target's attention layers is scored, and how its key pages are read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor

from diffspec.compact_kv.pages import KeyPages, find_key_places
from diffspec.hosts.launch import LaunchFacts
from diffspec.hosts.surface import HostError
from diffspec.hosts.unsupported import refusals


def find_scored_layer(vllm_config: Any, draft_layers: Collection[str]) -> tuple[str, Any]:
    """Name and module of the target's last full-attention decoder layer.

    Raises:
        HostError: the target has none (all layers slide, or are of another kind).
    """
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.models.utils import extract_layer_index
    from vllm.v1.attention.backend import AttentionType
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    layers = {
        name: layer
        for name, layer in get_layers_from_vllm_config(vllm_config, Attention).items()
        if name not in draft_layers
        and layer.attn_type == AttentionType.DECODER
        and layer.sliding_window is None
        and getattr(layer, "kv_sharing_target_layer_name", None) is None
        and isinstance(layer.get_kv_cache_spec(vllm_config), FullAttentionSpec)
    }
    if not layers:
        raise HostError(*refusals(LaunchFacts(target_full_attention_layers=0), ("load",)))
    name = max(layers, key=extract_layer_index)
    return name, layers[name]


def require_readable(layer: Any) -> None:
    """Refuse a layer for which vLLM chose an attention backend that is not read here.

    Raises:
        HostError: naming the backend.
    """
    backend = layer.attn_backend.get_name()
    if problems := refusals(LaunchFacts(attention_backend=backend)):
        raise HostError(*problems)


def group_of(kv_cache_config: Any, layer_name: str) -> int:
    """Index of the KV cache group that holds a layer."""
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        if layer_name in group.layer_names:
            return index
    raise HostError(f"layer {layer_name} is in no KV cache group")


def read_key_pages(layer: Any, block_size: int) -> KeyPages:
    """A reader of ``layer``'s K pages, in the layout its backend really writes.

    Raises:
        HostError: dimension 0 of the cache does not count pages, or the layout could not be found
            by writing coded keys and looking for them.
    """
    kv_cache, backend = layer.kv_cache, type(layer.impl).__name__
    page = 2 * block_size * layer.num_kv_heads * layer.head_size
    # Some backends keep all K before all V; asked here, before anything of that size is copied.
    if not isinstance(kv_cache, Tensor) or kv_cache[0].numel() != page:
        shape = tuple(kv_cache.shape) if isinstance(kv_cache, Tensor) else type(kv_cache).__name__
        raise HostError(
            f"KV cache of {backend}, {shape}, is not one tensor of pages of {page} elements "
            f"({block_size} tokens, K and V)"
        )

    def write(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
        layer.impl.do_kv_cache_update(layer, key, value, pages, slots)

    try:
        places = find_key_places(
            write,
            kv_cache,
            block_size=block_size,
            heads=layer.num_kv_heads,
            head_dim=layer.head_size,
        )
    except (ValueError, RuntimeError) as error:
        raise HostError(f"K pages of {backend}: {error}") from error
    return KeyPages(kv_cache, places)
