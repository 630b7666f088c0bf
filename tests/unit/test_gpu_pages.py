# SPDX-License-Identifier: Apache-2.0
"""The KV pages of vLLM's GPU attention backends, as CPU tensors made by vLLM's own functions.

No kernel of theirs runs here: the write that stands for it follows the layout's definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from diffspec.compact_kv.canonical import CanonicalCache
from diffspec.hosts.surface import HostError
from diffspec.hosts.vllm.target_layer import read_key_pages

pytest.importorskip("vllm")

from vllm.v1.attention.backends import flash_attn, triton_attn
from vllm.v1.attention.backends import utils as backend_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu.attn_utils import _reshape_attention_kv_cache

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCKS, BLOCK, HEADS, DIM = 5, 16, 3, 8
ROW = 2 * HEADS * DIM
PAGE = BLOCK * ROW
UNTOUCHED = 0x3F
BACKENDS = {
    "FLASH_ATTN": flash_attn.FlashAttentionBackend,
    "TRITON_ATTN": triton_attn.TritonAttentionBackend,
}
Write = Callable[[Any, Tensor, Tensor, Tensor, Tensor], None]


@pytest.fixture(params=["NHD", "HND"])
def physical(request: pytest.FixtureRequest) -> Iterator[str]:
    """The order of a page in memory, set as VLLM_KV_CACHE_LAYOUT would."""
    backend_utils.set_kv_cache_layout(request.param)
    yield request.param
    backend_utils.set_kv_cache_layout(None)


def raw_memory(elements: int, dtype: torch.dtype) -> Tensor:
    return torch.full((elements * dtype.itemsize,), UNTOUCHED, dtype=torch.int8)


def allocate(
    backend: Any, dtype: torch.dtype, how: str, *, heads: int = HEADS, dim: int = DIM
) -> tuple[Tensor, Tensor]:
    """A layer's raw memory and its KV cache, the way vLLM's runner shapes one into the other."""
    row = 2 * heads * dim
    page, gap = BLOCK * row, 3 * row * dtype.itemsize
    page_bytes = page * dtype.itemsize
    stride = page_bytes if how == "own" else page_bytes + gap
    spec = FullAttentionSpec(
        block_size=BLOCK,
        num_kv_heads=heads,
        head_size=dim,
        dtype=dtype,
        page_size_padded=stride if how == "padded" else None,
    )
    raw = raw_memory(BLOCKS * stride // dtype.itemsize, dtype)
    # Packed: a block holds pages of several layers, and this layer's lies in the middle.
    packing = (row * dtype.itemsize, stride) if how == "packed" else None
    shape = backend.get_kv_cache_shape(BLOCKS, BLOCK, heads, dim)
    order = backend.get_kv_cache_stride_order()
    return raw, _reshape_attention_kv_cache(raw, spec, shape, order, BLOCKS, packing)


def write_packed(layer: Any, key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
    """vLLM 0.28: ``[blocks, heads, block, K | V]``, whatever the order in memory."""
    for row, slot in enumerate(slots.tolist()):
        cell = pages[slot // BLOCK, :, slot % BLOCK]
        cell[:, : key.shape[-1]], cell[:, key.shape[-1] :] = key[row], value[row]


def write_pair(layer: Any, key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
    """vLLM 0.25: ``[blocks, 2, block, heads, d]``."""
    for row, slot in enumerate(slots.tolist()):
        pages[slot // BLOCK, 0, slot % BLOCK] = key[row]
        pages[slot // BLOCK, 1, slot % BLOCK] = value[row]


def layer_of(pages: Tensor, write: Write, *, heads: int = HEADS, dim: int = DIM) -> Any:
    impl = SimpleNamespace(do_kv_cache_update=write)
    return SimpleNamespace(kv_cache=pages, num_kv_heads=heads, head_size=dim, impl=impl)


def check_keys(pages: Tensor, write: Write, *, heads: int = HEADS, dim: int = DIM) -> None:
    """Keys written the backend's way come out, through a view."""
    layer = layer_of(pages, write, heads=heads, dim=dim)
    before = pages.clone()
    reader = read_key_pages(layer, BLOCK)
    assert torch.equal(pages.view(torch.int16), before.view(torch.int16)), "a real page was written"
    assert reader.layout == "strided"
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn((2, BLOCKS * BLOCK, heads, dim), generator=generator).to(pages.dtype)
    slots = torch.randperm(BLOCKS * BLOCK, generator=generator)
    write(layer, key[slots], value[slots], pages, slots)
    expected = key.view(BLOCKS, BLOCK, heads, dim).permute(0, 2, 3, 1)
    wanted = torch.tensor([4, 0, 2, 2])
    assert torch.equal(reader.read(wanted), expected[wanted])
    in_place = reader.in_place(1, 3)
    assert in_place is not None
    assert torch.equal(in_place, expected[1:4])


def check_canonical(raw: Tensor, pages: Tensor) -> None:
    """Rows come back, and nothing between the pages is touched."""
    cache = CanonicalCache(pages, block_size=BLOCK, heads=HEADS, head_dim=DIM)
    generator = torch.Generator().manual_seed(1)
    k, v = torch.randn((2, BLOCKS * BLOCK, HEADS, DIM), generator=generator).to(pages.dtype)
    slots = torch.randperm(BLOCKS * BLOCK, generator=generator)
    cache.write(slots, k, v)
    read = cache.gather(slots, torch.empty(BLOCKS * PAGE, dtype=pages.dtype))
    assert torch.equal(read[:, 0], k)
    assert torch.equal(read[:, 1], v)
    inside = torch.zeros(raw.numel() // pages.dtype.itemsize, dtype=torch.bool)
    inside.as_strided(pages.shape, pages.stride(), pages.storage_offset()).fill_(True)
    assert int(inside.sum()) == BLOCKS * PAGE
    assert (raw.view(len(inside), -1)[~inside] == UNTOUCHED).all()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("how", ["own", "padded", "packed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pages_of_this_release(physical: str, name: str, how: str, dtype: torch.dtype) -> None:
    raw, pages = allocate(BACKENDS[name], dtype, how)
    assert pages.shape == (BLOCKS, HEADS, BLOCK, 2 * DIM)
    assert (pages.stride(1) < pages.stride(2)) is (physical == "NHD")
    check_keys(pages, write_packed)
    raw.fill_(UNTOUCHED)
    check_canonical(raw, pages)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("heads", "dim"), [(1, 128), (8, 128)])
@pytest.mark.usefixtures("physical")
def test_keys_of_real_widths(name: str, heads: int, dim: int) -> None:
    _, pages = allocate(BACKENDS[name], torch.bfloat16, "own", heads=heads, dim=dim)
    check_keys(pages, write_packed, heads=heads, dim=dim)


@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("gap", [0, 2])
def test_pages_of_an_older_release(order: str, gap: int) -> None:
    dtype, stride = torch.bfloat16, PAGE + gap * ROW
    raw = raw_memory(BLOCKS * stride, dtype)
    token, head = (HEADS * DIM, DIM) if order == "NHD" else (DIM, BLOCK * DIM)
    pages = raw.view(dtype).as_strided(
        (BLOCKS, 2, BLOCK, HEADS, DIM), (stride, BLOCK * HEADS * DIM, token, head, 1)
    )
    check_keys(pages, write_pair)
    raw.fill_(UNTOUCHED)
    check_canonical(raw, pages)


def test_all_keys_before_all_values_is_refused() -> None:
    """As some backends and older releases do it; dimension 0 is then not the page."""
    pages = torch.zeros((2, BLOCKS, BLOCK, HEADS, DIM))

    def never(*args: Any) -> None:
        pytest.fail("asked the backend to write")

    with pytest.raises(HostError, match=rf"\(2, {BLOCKS}, .* is not one tensor of pages of {PAGE}"):
        read_key_pages(layer_of(pages, never), BLOCK)
    with pytest.raises(HostError, match="SimpleNamespace, tuple, is not one tensor of pages"):
        read_key_pages(layer_of((pages[0], pages[1]), never), BLOCK)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a dense stretch"):
        CanonicalCache(pages, block_size=BLOCK, heads=HEADS, head_dim=DIM)


def test_pages_a_fraction_of_a_row_apart_hold_no_canonical_rows() -> None:
    raw = raw_memory(BLOCKS * (PAGE + DIM), torch.bfloat16)
    pages = raw.view(torch.bfloat16).view(BLOCKS, -1)[:, :PAGE].view(BLOCKS, HEADS, BLOCK, -1)
    with pytest.raises(ValueError, match="no multiple"):
        CanonicalCache(pages, block_size=BLOCK, heads=HEADS, head_dim=DIM)
