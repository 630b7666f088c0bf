# SPDX-License-Identifier: Apache-2.0
"""Chunk masses against a dense float64 softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffspec.compact_kv.pages import KeyPages
from diffspec.retrieval import scoring
from diffspec.retrieval.scoring import ChunkScorer
from tests.unit.naive import Recorder, chunk_masses, double

pytestmark = pytest.mark.usefixtures("one_thread")


def row_major(block: int, heads: int, dim: int) -> Tensor:
    """Places of keys in pages ``[block, heads, 2 · head_dim]``, K before V."""
    t, h, d = torch.arange(block), torch.arange(heads), torch.arange(dim)
    return t[:, None, None] * heads * 2 * dim + h[:, None] * 2 * dim + d


def make_scorer(pages: Tensor, block: int, heads: int, dim: int, **options: Any) -> ChunkScorer:
    defaults = {"scale": dim**-0.5, "max_requests": 4, "device": torch.device("cpu")}
    sizes = {"block_size": block, "kv_heads": heads, "head_dim": dim, "dtype": pages.dtype}
    scorer = ChunkScorer(**{**sizes, **defaults, **options})
    scorer.bind(KeyPages(pages, row_major(block, heads, dim)))
    return scorer


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    chunk=st.sampled_from([1, 8, 16, 32, 64]),
    page=st.sampled_from([4, 16, 48, 64, 100]),
    tile=st.sampled_from([1, 64, 100, 4096]),
    order=st.sampled_from(["shuffled", "rising", "falling"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_masses(
    lengths: list[int],
    kv_heads: int,
    group: int,
    chunk: int,
    page: int,
    tile: int,
    order: str,
    dtype: torch.dtype,
    seed: int,
) -> None:
    dim, longest = 8, max(lengths)
    generator = torch.Generator().manual_seed(seed)
    per_request = math.ceil(longest / page)
    count = per_request * len(lengths)
    pages = torch.full((count, page, kv_heads, 2 * dim), torch.nan, dtype=dtype)
    numbers = torch.randperm(count, generator=generator)
    if order != "shuffled":
        numbers = numbers.sort(descending=order == "falling").values
    table = numbers.view(len(lengths), per_request).int()
    query = 3 * torch.randn((len(lengths), kv_heads * group, dim), generator=generator)
    keys = []
    for length, blocks in zip(lengths, table, strict=True):
        mine = torch.randn((length, kv_heads, dim), generator=generator).to(dtype)
        for position in range(length):
            pages[blocks[position // page], position % page, :, :dim] = mine[position]
        keys.append(double(mine))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "TILE_TOKENS", tile)
        patch.setattr(scoring, "TILE_BYTES", 4 * kv_heads * dim * tile)
        scorer = make_scorer(
            pages, page, kv_heads, dim, query_heads=kv_heads * group, chunk_size=chunk,
            max_model_len=300,
        )  # fmt: skip
        # What a longer context left in the workspace must not shine through.
        scorer._lse.fill_(1e4)
        masses = scorer.masses(query.to(dtype), table, torch.tensor(lengths), longest)
    assert masses.shape == (len(lengths), math.ceil(longest / chunk))
    assert masses.dtype == torch.float32
    np.testing.assert_allclose(double(masses.sum(-1)), 1, atol=1e-5)
    for row in range(len(lengths)):
        wanted = chunk_masses(double(query[row].to(dtype)), keys[row], dim**-0.5, chunk)
        np.testing.assert_allclose(double(masses[row, : len(wanted)]), wanted, atol=1e-5)
        assert not masses[row, len(wanted) :].any()


def test_one_key_in_128k_tokens_is_found_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scoring, "TILE_BYTES", 1 << 18)  # these heads are few and small
    context, page, kv_heads, heads, dim, chunk = 131072, 64, 2, 8, 16, 64
    generator = torch.Generator().manual_seed(0)
    pages = torch.randn((context // page, page, kv_heads, 2 * dim), generator=generator)
    table = torch.randperm(context // page, generator=generator).unsqueeze(0)
    query = torch.randn((1, heads, dim), generator=generator)
    planted = 77_777
    # Every query head of a group looks for the sum of the group's directions.
    target = query.view(kv_heads, heads // kv_heads, dim).sum(1)
    pages[table[0, planted // page], planted % page, :, :dim] = 20 * target
    scorer = make_scorer(
        pages, page, kv_heads, dim, query_heads=heads, chunk_size=chunk, max_model_len=context
    )
    lengths = torch.tensor([context])
    with Recorder() as seen:
        masses = scorer.masses(query, table, lengths, context)
    assert int(masses.argmax()) == planted // chunk
    assert masses.max() > 0.5
    assert float(masses.sum()) == pytest.approx(1, abs=1e-4)
    workspace = heads * context // min(page, chunk)
    assert seen.largest <= max(scoring.TILE_TOKENS * max(kv_heads * dim, heads), workspace)
    assert seen.largest < heads * context
    assert scorer.nbytes < heads * context + scoring.TILE_BYTES


def test_ranks_reduce_to_the_mass_of_all_heads() -> None:
    page, kv_heads, heads, dim, chunk, length = 16, 2, 4, 8, 8, 90
    generator = torch.Generator().manual_seed(0)
    pages = torch.randn((6, page, kv_heads, 2 * dim), generator=generator)
    query = torch.randn((1, heads, dim), generator=generator)
    table, lengths = torch.arange(6).unsqueeze(0), torch.tensor([length])
    whole = make_scorer(
        pages, page, kv_heads, dim, query_heads=heads, chunk_size=chunk, max_model_len=length
    ).masses(query, table, lengths, length)

    sums: list[Tensor] = []
    for rank in range(2):  # the first rank's reduction only notes its sum, the second's adds it

        def reduce(mass: Tensor) -> None:
            sums.append(mass.clone())
            mass.copy_(torch.stack(sums).sum(0))

        mine = pages[:, :, rank : rank + 1].contiguous()
        scorer = make_scorer(
            mine, page, 1, dim, query_heads=2, chunk_size=chunk, max_model_len=length,
            reduce=reduce, total_query_heads=heads,
        )  # fmt: skip
        masses = scorer.masses(query[:, 2 * rank : 2 * rank + 2], table, lengths, length)
    assert torch.allclose(masses, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("block", "heads", "dtype"),
    [(8, 2, torch.float32), (16, 3, torch.float32), (16, 2, torch.bfloat16)],
)
def test_pages_that_do_not_fit_are_refused(block: int, heads: int, dtype: torch.dtype) -> None:
    scorer = ChunkScorer(
        block_size=16, query_heads=4, kv_heads=2, head_dim=8, dtype=torch.float32, scale=1.0,
        chunk_size=8, max_model_len=64, max_requests=1, device=torch.device("cpu"),
    )  # fmt: skip
    pages = KeyPages(torch.zeros((2, block, heads, 16), dtype=dtype), row_major(block, heads, 8))
    with pytest.raises(ValueError, match="do not fit a scorer"):
        scorer.bind(pages)
