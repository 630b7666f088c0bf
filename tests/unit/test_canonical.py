# SPDX-License-Identifier: Apache-2.0
"""The canonical cache in the host's pages: addressing, round trips, holes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diffspec.compact_kv.canonical import CanonicalCache, SplitCanonicalCache

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCKS, BLOCK, HEADS, DIM = 6, 8, 2, 4
ROW = 2 * HEADS * DIM
SHAPES = [
    (2, BLOCK, HEADS, DIM),
    (HEADS, BLOCK, 2 * DIM),
    (BLOCK, HEADS, 2 * DIM),
]


def make(padding: int = 0, shape: tuple[int, ...] = SHAPES[0], offset: int = 0) -> Tensor:
    """NaN pages ``padding`` elements apart, ``offset`` elements into their storage."""
    stride = BLOCK * ROW + padding
    storage = torch.full((offset + BLOCKS * stride,), torch.nan)
    return storage.as_strided((BLOCKS, *shape), (stride, *torch.empty(shape).stride()), offset)


def cache_over(pages: Tensor) -> CanonicalCache:
    return CanonicalCache(pages, block_size=BLOCK, heads=HEADS, head_dim=DIM)


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn((2, count, HEADS, DIM), generator=generator)
    return k, v


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("padding", [0, ROW, 3 * ROW])
@pytest.mark.parametrize("offset", [0, 5])
def test_round_trip(shape: tuple[int, ...], padding: int, offset: int) -> None:
    pages = make(padding, shape, offset)
    cache = cache_over(pages)
    slots = torch.randperm(BLOCKS * BLOCK, generator=torch.Generator().manual_seed(1))[:29]
    k, v = rows(29)
    cache.write(slots, k, v)
    order = torch.tensor([3, 28, 0, 3, 11])
    read = cache.gather(slots[order], torch.empty(100 * ROW))
    assert torch.equal(read[:, 0], k[order])
    assert torch.equal(read[:, 1], v[order])
    # Each row lies inside its own page and nothing else was touched.
    for block in range(BLOCKS):
        inside = int((slots // BLOCK == block).sum())
        assert int(pages[block].isfinite().sum()) == inside * ROW
    storage = torch.as_strided(pages, (pages.untyped_storage().size() // 4,), (1,), 0)
    assert int(storage.isfinite().sum()) == 29 * ROW


def test_gather_of_nothing() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert cache_over(make()).gather(empty, torch.empty(ROW)).shape == (0, 2, HEADS, DIM)


def test_row_numbers_keep_their_shape() -> None:
    slots = torch.tensor([[0, 7], [8, 47]])
    assert cache_over(make()).row_of(slots).tolist() == [[0, 7], [8, 47]]
    assert cache_over(make(2 * ROW)).row_of(slots).tolist() == [[0, 7], [10, 57]]


def test_holes_are_marked_and_healed_by_the_first_row_of_a_page() -> None:
    cache = cache_over(make())
    assert not cache.has_holes
    cache.mark_holes(torch.tensor([14, 15, 16, 40]))
    assert cache.holes.tolist() == [False, True, True, False, False, True]
    cache.write(torch.tensor([9, 17, 41, 0]), *rows(4))
    assert cache.holes.tolist() == [False, True, True, False, False, True]
    cache.write(torch.tensor([15, 16, 17]), *rows(3))
    assert cache.holes.tolist() == [False, True, False, False, False, True]
    assert cache.has_holes
    cache.write(torch.tensor([8, 40]), *rows(2))
    assert not cache.holes.any()
    assert not cache.has_holes


def test_padding_slots_mark_no_page() -> None:
    cache = cache_over(make())
    cache.mark_holes(torch.tensor([3, -1, -1]))
    assert cache.holes.tolist() == [True] + [False] * 5


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        (make(padding=ROW // 2), "no multiple"),
        (torch.zeros((BLOCKS, 2, BLOCK, HEADS, DIM + 1)), "not a dense stretch"),
        (torch.zeros((BLOCKS, 2, BLOCK, HEADS, 2 * DIM))[..., :DIM], "not a dense stretch"),
    ],
)
def test_pages_of_another_kind_are_refused(pages: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cache_over(pages)


def make_pair(padding: int = 0, *, heads_first: bool = False) -> tuple[Tensor, Tensor]:
    """K and V pages of two tensors, ``padding`` elements between pages, NaN everywhere."""
    page = BLOCK * HEADS * DIM
    stride = page + padding
    inner = (HEADS, BLOCK, DIM) if heads_first else (BLOCK, HEADS, DIM)
    strides = (stride, inner[1] * DIM, DIM, 1)
    k, v = (
        torch.full((BLOCKS * stride,), torch.nan).as_strided((BLOCKS, *inner), strides)
        for _ in range(2)
    )
    return k, v


def split_over(pair: tuple[Tensor, Tensor]) -> SplitCanonicalCache:
    return SplitCanonicalCache(*pair, block_size=BLOCK, heads=HEADS, head_dim=DIM)


@pytest.mark.parametrize("padding", [0, 2 * HEADS * DIM])
@pytest.mark.parametrize("heads_first", [False, True])
def test_rows_in_two_tensors(padding: int, heads_first: bool) -> None:
    pair = make_pair(padding, heads_first=heads_first)
    cache, one = split_over(pair), cache_over(make())
    assert cache.num_blocks == one.num_blocks
    assert cache.dtype == pair[0].dtype
    slots = torch.tensor([40, 3, 17, 16, 47])
    k, v = rows(5)
    for each in (cache, one):
        each.write(slots, k, v)
    asked = torch.tensor([17, 47, 3, 3])
    outs = [torch.empty(6 * ROW) for _ in range(2)]
    found, expected = (c.gather(asked, out) for c, out in zip((cache, one), outs, strict=True))
    assert torch.equal(found, expected)
    assert found.untyped_storage().data_ptr() == outs[0].untyped_storage().data_ptr()
    written = [int((~part.isnan()).sum()) for part in pair]
    assert written == [5 * HEADS * DIM] * 2
    cache.mark_holes(torch.tensor([16]))
    assert cache.has_holes
    cache.write(torch.tensor([16]), k[:1], v[:1])
    assert not cache.has_holes


def test_two_tensors_that_differ_are_refused() -> None:
    k, v = make_pair()
    for other in (v.half(), v[:-1], make_pair(HEADS * DIM)[1]):
        with pytest.raises(ValueError, match="are not laid out alike"):
            split_over((k, other))
    for pair, message in (
        (make_pair(1), "no multiple"),
        ((k[:, :-1], v[:, :-1]), "not a dense stretch"),
    ):
        with pytest.raises(ValueError, match=message):
            split_over(pair)
