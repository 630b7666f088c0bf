# SPDX-License-Identifier: Apache-2.0
"""vLLM-Ascend's pages: K and V of a layer are two tensors.

They hold ``[blocks, tokens, heads, head_dim]``, or with ``VLLM_KV_CACHE_LAYOUT`` set to ``HND`` or
``LBHNC`` ``[blocks, heads, tokens, head_dim]``. Which of them it is, is not asked but found out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from diffspec.compact_kv.canonical import SplitCanonicalCache
from diffspec.compact_kv.pages import KeyPages, find_key_places
from diffspec.hosts.surface import HostError


def draft_pages(
    kv_cache: Any, *, block_size: int, heads: int, head_dim: int
) -> SplitCanonicalCache:
    """Our rows in the draft layer's pages.

    Raises:
        ValueError: the cache is not a pair of tensors of dense pages of that size.
    """
    k_cache, v_cache = _pair(kv_cache)
    return SplitCanonicalCache(
        k_cache, v_cache, block_size=block_size, heads=heads, head_dim=head_dim
    )


def read_key_pages(layer: Any, block_size: int) -> KeyPages:
    """A reader of ``layer``'s K pages, in the layout its backend really writes.

    Args:
        layer: an attention layer of the target with its KV cache.
        block_size: tokens per page at the granularity of the block table.

    Raises:
        HostError: the cache is not a pair of tensors of dense pages of that size, or the layout
            could not be found by writing coded keys and looking for them.
    """
    impl = layer.impl
    try:
        k_cache, _ = _pair(layer.kv_cache)
        if k_cache[0].numel() != block_size * layer.num_kv_heads * layer.head_size:
            raise ValueError(f"pages of shape {tuple(k_cache.shape[1:])}, not {block_size} tokens")

        def write(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
            scratch = (pages, torch.zeros_like(pages))
            with _writing_to(impl, scratch):
                impl.do_kv_cache_update(layer, key, value, scratch, slots.int())

        places = find_key_places(
            write,
            k_cache,
            block_size=block_size,
            heads=layer.num_kv_heads,
            head_dim=layer.head_size,
        )
        return KeyPages(k_cache, places, whole=True)
    except (ValueError, RuntimeError) as error:
        raise HostError(f"K pages of {type(impl).__name__}: {error}") from error


@contextmanager
def _writing_to(impl: Any, pages: tuple[Tensor, Tensor]) -> Iterator[None]:
    # The implementation remembers the first cache it saw and writes to that one only.
    remembered = impl.key_cache, impl.value_cache
    impl.key_cache, impl.value_cache = pages
    try:
        yield
    finally:
        impl.key_cache, impl.value_cache = remembered


def _pair(kv_cache: Any) -> tuple[Tensor, Tensor]:
    if (
        isinstance(kv_cache, list) and len(kv_cache) == 1
    ):  # one per virtual engine, in some releases
        kv_cache = kv_cache[0]
    pair = tuple(kv_cache) if isinstance(kv_cache, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
        raise ValueError(f"a KV cache of {type(kv_cache).__name__}, not of one K and one V tensor")
    if pair[0].shape != pair[1].shape or pair[0].dtype != pair[1].dtype:
        raise ValueError("K and V pages are not alike")
    return pair[0], pair[1]
