# SPDX-License-Identifier: Apache-2.0
"""Finding and reading the target's key pages, against backends written down by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from diffspec.compact_kv.pages import KeyPages, find_key_places

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCKS, BLOCK, HEADS, DIM = 5, 16, 3, 24
Write = Callable[[Tensor, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True)
class Backend:
    shape: tuple[int, ...]
    write: Write
    layout: str


def write_nhd(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
    for row, slot in enumerate(slots.tolist()):
        pages[slot // BLOCK, 0, slot % BLOCK] = key[row]
        pages[slot // BLOCK, 1, slot % BLOCK] = value[row]


def write_hnd(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
    for row, slot in enumerate(slots.tolist()):
        pages[slot // BLOCK, 0, :, slot % BLOCK] = key[row]
        pages[slot // BLOCK, 1, :, slot % BLOCK] = value[row]


def write_transposed(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
    """Per block and head: K as ``[head_dim, block]``, then V as ``[block, head_dim]``."""
    for row, slot in enumerate(slots.tolist()):
        for head in range(HEADS):
            memory = pages[slot // BLOCK, head].view(-1)
            memory[: BLOCK * DIM].view(DIM, BLOCK)[:, slot % BLOCK] = key[row, head]
            memory[BLOCK * DIM :].view(BLOCK, DIM)[slot % BLOCK] = value[row, head]


SHUFFLE = torch.randperm(2 * BLOCK * HEADS * DIM, generator=torch.Generator().manual_seed(3))


def write_scrambled(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
    """No stride at all: every element has its own place, as in packed matrix-unit layouts."""
    at = SHUFFLE.view(2, BLOCK, HEADS, DIM)
    for row, slot in enumerate(slots.tolist()):
        memory = pages[slot // BLOCK].view(-1)
        memory[at[0, slot % BLOCK]] = key[row]
        memory[at[1, slot % BLOCK]] = value[row]


def write_reversed(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
    """Tokens from the page's end to its start: regular, but no view can have such a stride."""
    for row, slot in enumerate(slots.tolist()):
        pages[slot // BLOCK, 0, BLOCK - 1 - slot % BLOCK] = key[row]
        pages[slot // BLOCK, 1, BLOCK - 1 - slot % BLOCK] = value[row]


BACKENDS = {
    "NHD": Backend((2, BLOCK, HEADS, DIM), write_nhd, "strided"),
    "HND": Backend((2, HEADS, BLOCK, DIM), write_hnd, "strided"),
    "transposed": Backend((HEADS, BLOCK, 2 * DIM), write_transposed, "strided"),
    "scrambled": Backend((2, BLOCK, HEADS, DIM), write_scrambled, "permuted"),
    "reversed": Backend((2, BLOCK, HEADS, DIM), write_reversed, "permuted"),
}


def make_pages(shape: tuple[int, ...], dtype: torch.dtype, padding: int, offset: int) -> Tensor:
    """Pages full of NaN, ``padding`` elements apart, not at the start of their storage."""
    dense = torch.empty(shape)
    stride = dense.numel() + padding
    storage = torch.full((offset + BLOCKS * stride,), torch.nan, dtype=dtype)
    return storage.as_strided((BLOCKS, *shape), (stride, *dense.stride()), offset)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("padding", "offset"), [(0, 0), (40, 8)])
def test_keys_come_back(name: str, dtype: torch.dtype, padding: int, offset: int) -> None:
    backend = BACKENDS[name]
    pages = make_pages(backend.shape, dtype, padding, offset)
    before = pages.clone()
    places = find_key_places(backend.write, pages, block_size=BLOCK, heads=HEADS, head_dim=DIM)
    assert torch.equal(pages.isnan(), before.isnan()), "the real pages were written to"

    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn((2, BLOCKS * BLOCK, HEADS, DIM), generator=generator).to(dtype)
    slots = torch.randperm(BLOCKS * BLOCK, generator=generator)
    backend.write(key[slots], value[slots], pages, slots)
    reader = KeyPages(pages, places)
    assert (reader.block_size, reader.heads, reader.head_dim) == (BLOCK, HEADS, DIM)
    assert reader.layout == backend.layout
    wanted = torch.tensor([4, 0, 2, 2])
    out = torch.empty((4, HEADS, DIM, BLOCK), dtype=dtype)
    read = reader.read(wanted, out)
    assert read.data_ptr() == out.data_ptr()
    assert torch.equal(reader.read(wanted), read)
    assert read.shape == (4, HEADS, DIM, BLOCK)
    for i, block in enumerate(wanted.tolist()):
        for token in range(BLOCK):
            assert torch.equal(read[i, :, :, token], key[block * BLOCK + token])


@pytest.mark.parametrize("shape", [(BLOCK, HEADS, DIM), (HEADS, BLOCK, DIM)])
@pytest.mark.parametrize("offset", [0, 8])
def test_whole_pages_are_turned_after_they_were_copied(shape: tuple[int, ...], offset: int) -> None:
    pages = make_pages(shape, torch.bfloat16, 0, offset)
    places = torch.arange(pages[0].numel()).view(shape)
    if shape[0] == HEADS:
        places = places.transpose(0, 1)
    key = torch.randn(BLOCKS, BLOCK, HEADS, DIM).bfloat16()
    pages.copy_(key if shape[0] == BLOCK else key.transpose(1, 2))
    whole, view = (KeyPages(pages, places.contiguous(), whole=w) for w in (True, False))
    wanted = torch.tensor([4, 0, 2, 2])
    assert torch.equal(whole.read(wanted), key[wanted].permute(0, 2, 3, 1))
    for out in (None, torch.empty((4, HEADS, DIM, BLOCK), dtype=torch.bfloat16)):
        assert torch.equal(whole.read(wanted, out), view.read(wanted))
    assert (whole.view, whole.in_place(1, 2)) == (None, None)
    assert view.view is not None


def test_whole_pages_have_to_be_dense_and_regular() -> None:
    plain = torch.arange(BLOCK * HEADS * DIM).view(BLOCK, HEADS, DIM)
    for pages, places in (
        (make_pages((BLOCK, HEADS, DIM), torch.float32, 8, 0), plain),
        (make_pages((2, BLOCK, HEADS, DIM), torch.float32, 0, 0), plain),
        (make_pages((BLOCK, HEADS, DIM), torch.float32, 0, 0), plain.flip(0)),
    ):
        with pytest.raises(ValueError, match="not dense stretches"):
            KeyPages(pages, places, whole=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_head_and_more_elements_than_two_digits_can_name(dtype: torch.dtype) -> None:
    block, dim = 256, 128  # 32768 > 128 · 128

    def write(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
        pages[0, :, 0, :dim], pages[0, :, 0, dim:] = key[:, 0], value[:, 0]

    pages = torch.zeros((2, block, 1, 2 * dim), dtype=dtype)
    places = find_key_places(write, pages, block_size=block, heads=1, head_dim=dim)
    t, d = torch.arange(block)[:, None], torch.arange(dim)
    assert torch.equal(places[:, 0], t * 2 * dim + d)


def lose_a_head(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
    write_nhd(key, value, pages, slots)
    pages[:, 0, :, 1] = 0


def overwrite_a_token(key: Tensor, value: Tensor, pages: Tensor, slots: Tensor) -> None:
    write_nhd(key, value, pages, slots)
    pages[:, 0, 3] = pages[:, 0, 4]


@pytest.mark.parametrize("write", [lose_a_head, overwrite_a_token])
def test_a_backend_that_loses_elements_is_refused(write: Write) -> None:
    pages = torch.zeros((BLOCKS, 2, BLOCK, HEADS, DIM))
    with pytest.raises(ValueError, match="layout is not understood"):
        find_key_places(write, pages, block_size=BLOCK, heads=HEADS, head_dim=DIM)


def test_a_page_that_is_not_one_stretch_is_refused() -> None:
    pages = torch.zeros((BLOCKS, 2, BLOCK, HEADS, DIM + 8))[..., :DIM]
    with pytest.raises(ValueError, match="not one stretch"):
        find_key_places(write_nhd, pages, block_size=BLOCK, heads=HEADS, head_dim=DIM)
