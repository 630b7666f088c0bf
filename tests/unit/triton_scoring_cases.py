# SPDX-License-Identifier: Apache-2.0
"""Chunk scoring by Triton, through its interpreter; run by ``test_triton_kernels.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffspec.compact_kv.kernels import TORCH, TRITON, KernelChoice
from diffspec.compact_kv.pages import KeyPages, find_key_places
from diffspec.retrieval.scoring import ChunkScorer
from tests.unit.naive import chunk_masses, double

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
Shape = tuple[int, int, int]  # block, heads, dim


@dataclass(frozen=True)
class Layout:
    """Pages as vLLM hands them over, full of nan, and how its backend writes keys."""

    make: Callable[[int, Shape, torch.dtype], Tensor]
    #: ``key_of(pages, shape)``: the keys as a view ``[blocks, tokens, heads, dim]``.
    key_of: Callable[[Tensor, Shape], Tensor]


def nan(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


def transposed_keys(pages: Tensor, shape: Shape) -> Tensor:
    block, heads, dim = shape
    size = (len(pages), heads, dim, block)
    return pages.as_strided(size, (pages.stride(0), pages.stride(1), block, 1)).permute(0, 3, 1, 2)


LAYOUTS = {
    # vLLM 0.25 on CUDA: [B, 2, N, H, D]
    "FlashAttention 0.25": Layout(
        lambda count, s, dtype: nan(count, 2, *s, dtype=dtype), lambda pages, s: pages[:, 0]
    ),
    # vLLM 0.28 on CUDA: [B, H, N, 2 D], in memory [B, N, H, 2 D] ...
    "FlashAttention 0.28, NHD": Layout(
        lambda count, s, dtype: nan(count, *s[:2], 2 * s[2], dtype=dtype).transpose(1, 2),
        lambda pages, s: pages[..., : s[2]].transpose(1, 2),
    ),
    # ... or as it says
    "FlashAttention 0.28, HND": Layout(
        lambda count, s, dtype: nan(count, s[1], s[0], 2 * s[2], dtype=dtype),
        lambda pages, s: pages[..., : s[2]].transpose(1, 2),
    ),
    # vLLM's CPU: per block and head K as [D, N], then V as [N, D]
    "transposed": Layout(
        lambda count, s, dtype: nan(count, s[1], s[0], 2 * s[2], dtype=dtype), transposed_keys
    ),
}


def reader(layout: Layout, pages: Tensor, shape: Shape) -> KeyPages:
    block, heads, dim = shape

    def write(key: Tensor, value: Tensor, scratch: Tensor, slots: Tensor) -> None:
        layout.key_of(scratch, shape)[slots // block, slots % block] = key

    places = find_key_places(write, pages, block_size=block, heads=heads, head_dim=dim)
    return KeyPages(pages, places)


def scorer_for(pages: KeyPages, kernels: KernelChoice, group: int, chunk: int) -> ChunkScorer:
    scorer = ChunkScorer(
        block_size=pages.block_size, query_heads=pages.heads * group, kv_heads=pages.heads,
        head_dim=pages.head_dim, dtype=pages.dtype, scale=pages.head_dim**-0.5, chunk_size=chunk,
        max_model_len=400, max_requests=4, device=CPU, kernels=kernels,
    )  # fmt: skip
    scorer.bind(pages)
    # What a longer context left in the workspace must not shine through.
    scorer._lse.fill_(1e4)
    return scorer


def log_sum_exps(q: np.ndarray, keys: np.ndarray, scale: float, granule: int) -> np.ndarray:
    """``[query_heads, granules]`` in float64."""
    group = len(q) // keys.shape[1]
    scores = np.einsum("hd,thd->ht", q, keys.repeat(group, 1)) * scale
    starts = range(0, len(keys), granule)
    return np.stack([np.logaddexp.reduce(scores[:, s : s + granule], 1) for s in starts], 1)


def check(
    layout: Layout, shape: Shape, dtype: torch.dtype, lengths: list[int], group: int, chunk: int,
    seed: int,
) -> None:  # fmt: skip
    block, heads, dim = shape
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    width = math.ceil(longest / block)
    pages = layout.make(width * len(lengths), shape, dtype)
    table = torch.randperm(len(pages), generator=generator).view(len(lengths), width).int()
    query = (2 * torch.randn((len(lengths), heads * group, dim), generator=generator)).to(dtype)
    stored, contexts = layout.key_of(pages, shape), []
    for length, blocks in zip(lengths, table, strict=True):
        mine = torch.randn((length, heads, dim), generator=generator).to(dtype)
        for first in range(0, length, block):
            stored[blocks[first // block], : length - first] = mine[first : first + block]
        contexts.append(double(mine))

    view = reader(layout, pages, shape)
    scorer = scorer_for(view, TRITON, group, chunk)
    assert scorer.kernels == TRITON
    ragged = table.clone()
    for row, length in enumerate(lengths):  # past a request's pages its table is no page at all
        ragged[row, math.ceil(length / block) :] = 2**30
    masses = scorer.masses(query, ragged, torch.tensor(lengths), longest)
    by_torch = scorer_for(view, TORCH, group, chunk)
    assert scorer.nbytes < by_torch.nbytes + scorer._lse.nbytes - by_torch._lse.nbytes, "tiles"
    others = by_torch.masses(query, table, torch.tensor(lengths), longest)
    assert masses.shape == others.shape == (len(lengths), math.ceil(longest / chunk))
    np.testing.assert_allclose(double(masses), double(others), atol=1e-5)
    written = masses.shape[1] * chunk // scorer.granule
    for row, keys in enumerate(contexts):
        q = double(query[row])
        wanted = chunk_masses(q, keys, dim**-0.5, chunk)
        np.testing.assert_allclose(double(masses[row, : len(wanted)]), wanted, atol=1e-5)
        assert not masses[row, len(wanted) :].any()
        lse = log_sum_exps(q, keys, dim**-0.5, scorer.granule)
        found = double(scorer._lse[row, :, :written])
        np.testing.assert_allclose(found[:, : lse.shape[1]], lse, atol=2e-5)
        assert (found[:, lse.shape[1] :] == -np.inf).all()
    assert (scorer._lse[:, :, written:] == 1e4).all()
    assert (scorer._lse[len(lengths) :] == 1e4).all()


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(LAYOUTS)),
    lengths=st.lists(st.integers(1, 230), min_size=1, max_size=3),
    heads=st.integers(1, 2),
    group=st.sampled_from([1, 4, 5]),
    page=st.sampled_from([16, 32, 48, 64, 100]),
    chunk=st.sampled_from([16, 32, 64, 128]),
    dim=st.sampled_from([16, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
def test_masses(
    name: str, lengths: list[int], heads: int, group: int, page: int, chunk: int, dim: int,
    dtype: torch.dtype, seed: int,
) -> None:  # fmt: skip
    check(LAYOUTS[name], (page, heads, dim), dtype, lengths, group, chunk, seed)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("page", "chunk", "group", "dim", "dtype"),
    [
        (16, 64, 4, 128, torch.bfloat16),
        (64, 16, 5, 16, torch.float16),
        (128, 128, 1, 64, torch.float32),
        (48, 32, 8, 64, torch.bfloat16),
    ],
)
def test_every_layout(
    name: str, page: int, chunk: int, group: int, dim: int, dtype: torch.dtype
) -> None:
    check(LAYOUTS[name], (page, 2, dim), dtype, [171, 3, 64], group, chunk, seed=page)


def test_the_smallest_tile() -> None:
    check(LAYOUTS["transposed"], (128, 1, 256), torch.float32, [70], 2, 128, seed=0)


def test_queries_of_another_type_keep_their_precision() -> None:
    layout, shape = LAYOUTS["FlashAttention 0.28, NHD"], (16, 1, 16)
    generator = torch.Generator().manual_seed(0)
    pages = torch.randn((6, 16, 1, 32), generator=generator).bfloat16().transpose(1, 2)
    query = 3 * torch.randn((1, 2, 16), generator=generator)
    masses = scorer_for(reader(layout, pages, shape), TRITON, 2, 16).masses(
        query, torch.arange(6).view(1, 6), torch.tensor([90]), 90
    )
    keys = double(layout.key_of(pages, shape).flatten(0, 1)[:90])
    np.testing.assert_allclose(
        double(masses[0]), chunk_masses(double(query[0]), keys, 0.25, 16), atol=1e-5
    )


def permuted() -> KeyPages:
    """Tokens from a page's end to its start: no view has such strides."""
    places = torch.arange(64 * 16).view(64, 1, 16).flip(0)
    return KeyPages(torch.randn((4, 1, 64, 16)), places)


def of(dim: int, dtype: torch.dtype) -> KeyPages:
    places = torch.arange(16 * dim).view(16, 1, dim)
    return KeyPages(torch.randn((4, 1, 16, dim)).to(dtype), places)


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        (permuted(), "pages are permuted"),
        (of(80, torch.float32), "head dimension 80"),
        (of(8, torch.float32), "head dimension 8"),
        (of(16, torch.float64), "keys of type float64"),
    ],
    ids=str,
)
def test_torch_takes_what_does_not_fit(pages: KeyPages, reason: str) -> None:
    scorer = scorer_for(pages, TRITON, 4, 64)
    assert str(scorer.kernels) == f"torch ({reason})"
    assert scorer.granule == pages.block_size  # not the kernel's smaller one
    query = torch.randn((1, 4, pages.head_dim), generator=torch.Generator().manual_seed(0))
    arguments = (query, torch.arange(4).view(1, 4), torch.tensor([50]), 50)
    wanted = scorer_for(pages, TORCH, 4, 64).masses(*arguments)
    assert torch.allclose(scorer.masses(*arguments), wanted, atol=1e-6)
