# SPDX-License-Identifier: Apache-2.0
"""The working cache's attention by Triton, through its interpreter; run by
``test_triton_kernels.py``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffspec.compact_kv.kernels import TRITON, KernelChoice
from diffspec.compact_kv.rope import LocalRope
from diffspec.compact_kv.working import WorkingCache
from tests.unit.naive import attend, double

pytestmark = pytest.mark.usefixtures("one_thread")

SLOTS = 5
#: (head dimension, budget) so that the rows make one split, a few, and a few with a rest.
SIZES = ((16, 48), (64, 150), (128, 200), (256, 128), (256, 150))
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def make(
    dim: int,
    budget: int,
    heads: int,
    group: int,
    dtype: torch.dtype,
    kernels: KernelChoice = TRITON,
) -> WorkingCache:
    rope = LocalRope(torch.zeros((budget, dim)), neox_style=True, dtype=dtype)
    return WorkingCache(
        slots=SLOTS, budget=budget, heads=heads, head_dim=dim, dtype=dtype,
        device=torch.device("cpu"), rope=rope, kernels=kernels, query_heads=heads * group,
    )  # fmt: skip


def check(
    size: tuple[int, int], heads: int, group: int, dtype: torch.dtype, counts: list[int], seed: int
) -> None:
    dim, budget = size
    generator = torch.Generator().manual_seed(seed)
    cache, b = make(dim, budget, heads, group, dtype), len(counts)
    assert cache.kernels == TRITON
    assert cache._attention is not None
    # Stale rows, other slots and the workspace are as bad as they get.
    for buffer in (cache.k, cache.v, cache._attention._values, cache._attention._state):
        buffer.fill_(torch.nan)
    slots = torch.randperm(SLOTS, generator=generator)[:b]
    for slot, n in zip(slots.tolist(), counts, strict=True):
        cache.k[slot, :, :n] = torch.randn((heads, n, dim), generator=generator).to(dtype)
        cache.v[slot, :, :n] = torch.randn((heads, n, dim), generator=generator).to(dtype)
    # In a draft step q is the first part of rows that hold K as well.
    both = torch.randn((b, heads * (group + 1), dim), generator=generator).to(dtype)
    q = (2 * both)[:, : heads * group]
    out = cache.attend(q, slots, torch.tensor(counts), max(counts), dim**-0.5, -1)
    assert out.shape == (b, heads * group * dim)
    assert out.dtype == dtype
    plain = make(dim, budget, heads, group, dtype, KernelChoice("torch"))
    plain.k.copy_(cache.k.nan_to_num(0)), plain.v.copy_(cache.v.nan_to_num(0))
    by_torch = plain.attend(q, slots, torch.tensor(counts), max(counts), dim**-0.5, -1)
    np.testing.assert_allclose(double(out), double(by_torch), atol=TOLERANCE[dtype])
    for row, (slot, n) in enumerate(zip(slots.tolist(), counts, strict=True)):
        keys, values = (double(x[slot, :, :n]).swapaxes(0, 1) for x in (cache.k, cache.v))
        wanted = attend(double(q[row]), keys, values, dim**-0.5)
        np.testing.assert_allclose(double(out[row]), wanted.flatten(), atol=TOLERANCE[dtype])


@settings(max_examples=20, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    heads=st.integers(1, 2),
    group=st.sampled_from([1, 4, 5]),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
    share=st.lists(st.floats(0, 1), min_size=1, max_size=SLOTS),
    seed=st.integers(0, 2**31),
)
def test_attention(
    size: tuple[int, int],
    heads: int,
    group: int,
    dtype: torch.dtype,
    share: list[float],
    seed: int,
) -> None:
    check(size, heads, group, dtype, [1 + int(s * (size[1] - 1)) for s in share], seed)


@pytest.mark.parametrize(
    ("group", "dtype"),
    [(1, torch.bfloat16), (4, torch.float32), (5, torch.float16), (16, torch.bfloat16)],
)
def test_every_group(group: int, dtype: torch.dtype) -> None:
    check((256, 128), 2, group, dtype, [128, 1, 33, 64], seed=group)


def test_a_group_larger_than_the_smallest_product() -> None:
    check((16, 48), 1, 20, torch.float32, [31, 48], seed=0)


def test_a_budget_of_many_splits() -> None:
    check((256, 32 * 37 + 5), 1, 2, torch.float32, [32 * 37 + 5, 32 * 9], seed=0)


def test_rows_that_dominate_in_late_splits() -> None:
    """Scores far apart between splits: partial sums have to be rescaled, not added."""
    cache = make(256, 128, 1, 1, torch.float32)
    cache.k[2, 0, 100], cache.v[2, 0, 100] = 300.0, 5.0
    cache.v[2, 0, :100] = -1.0
    q = torch.ones((1, 1, 256))
    out = cache.attend(q, torch.tensor([2]), torch.tensor([101]), 101, 256**-0.5, 2)
    assert torch.equal(out, torch.full((1, 256), 5.0))


def test_the_next_call_overwrites_the_result_and_allocates_none() -> None:
    cache = make(16, 48, 2, 2, torch.float32)
    first = cache.attend(
        torch.randn((2, 4, 16)), torch.tensor([3, 1]), torch.tensor([5, 7]), 7, 0.25, -1
    )
    second = cache.attend(torch.randn((1, 4, 16)), torch.tensor([0]), torch.tensor([1]), 1, 1.0, 0)
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize("dim", [16, 256])
def test_the_workspace_is_counted(dim: int) -> None:
    plain = make(dim, 300, 2, 4, torch.bfloat16, KernelChoice("torch"))
    splits = -(-300 // min(256, 2**15 // (2 * dim)))
    workspace = SLOTS * 8 * (splits * (dim + 2) * 4 + dim * 2)
    assert make(dim, 300, 2, 4, torch.bfloat16).nbytes == plain.nbytes + workspace


@pytest.mark.parametrize(
    ("dim", "dtype", "reason"),
    [
        (80, torch.float32, "head dimension 80"),
        (8, torch.bfloat16, "head dimension 8"),
        (16, torch.float64, "keys of type float64"),
    ],
)
def test_torch_takes_what_does_not_fit(dim: int, dtype: torch.dtype, reason: str) -> None:
    cache = make(dim, 48, 2, 2, dtype)
    assert str(cache.kernels) == f"torch ({reason})"
    cache.v.fill_(1.0)
    q = torch.ones((1, 4, dim), dtype=dtype)
    out = cache.attend(q, torch.tensor([4]), torch.tensor([9]), 9, 1.0, 4)
    np.testing.assert_allclose(double(out), 1.0)
