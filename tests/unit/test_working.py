# SPDX-License-Identifier: Apache-2.0
"""The working cache against naive attention in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffspec.compact_kv import kernels
from diffspec.compact_kv.kernels import KernelChoice
from diffspec.compact_kv.rope import LocalRope
from diffspec.compact_kv.working import WorkingCache
from tests.unit.naive import attend, double, rotate
from tests.unit.test_rope import BASE, table

pytestmark = pytest.mark.usefixtures("one_thread")

SLOTS, BUDGET, DIM = 6, 40, 16


def make(heads: int = 2, choice: KernelChoice = kernels.TORCH) -> WorkingCache:
    return WorkingCache(
        kernels=choice,
        slots=SLOTS, budget=BUDGET, heads=heads, head_dim=DIM, dtype=torch.float32,
        device=torch.device("cpu"),
        rope=LocalRope(table(DIM)[:BUDGET], neox_style=True, dtype=torch.float32),
    )  # fmt: skip


def rotated(k: Tensor) -> np.ndarray:
    """``[n, heads, d]`` rotated at positions 0…n-1."""
    return np.stack([[rotate(h, p, DIM, BASE) for h in row] for p, row in enumerate(double(k))])


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, BUDGET), min_size=1, max_size=SLOTS),
    appended=st.integers(0, 5),
    heads=st.integers(1, 3),
    group=st.integers(1, 3),
    scattered=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_rebuild_put_and_attend(
    counts: list[int], appended: int, heads: int, group: int, scattered: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    cache, b = make(heads), len(counts)
    cache.k.fill_(1e3), cache.v.fill_(1e3)  # what earlier owners left
    first = int(torch.randint(SLOTS - b + 1, (1,), generator=generator))
    slots = torch.arange(first, first + b)
    if scattered:
        slots = torch.randperm(SLOTS, generator=generator)[:b].sort().values
    dense = first if not scattered else -1
    # The first rows come by rebuild (padded to the longest), the last ones by put.
    built = [max(1, n - appended) for n in counts]
    k, v = torch.randn((2, b, BUDGET, heads, DIM), generator=generator)
    both = torch.stack((k, v), dim=2)[:, : max(built)].clone()
    for row, n in enumerate(built):
        both[row, n:] = 7.0
    cache.rebuild(slots, both, dense)
    for row, n in enumerate(counts):
        at = torch.arange(built[row], n)
        cache.put(slots[row].expand(len(at)), at, cache.rope.rotate(k[row, at], at), v[row, at])
    q = torch.randn((b, heads * group, DIM), generator=generator)
    out = cache.attend(q, slots, torch.tensor(counts), max(counts), DIM**-0.5, dense)
    assert out.shape == (b, heads * group * DIM)
    for row, n in enumerate(counts):
        np.testing.assert_allclose(
            double(cache.k[slots[row], :, :n]).swapaxes(0, 1), rotated(k[row, :n]), atol=1e-5
        )
        wanted = attend(double(q[row]), rotated(k[row, :n]), double(v[row, :n]), DIM**-0.5)
        np.testing.assert_allclose(double(out[row]), wanted.flatten(), atol=1e-5)
    others = [s for s in range(SLOTS) if s not in slots.tolist()]
    assert (cache.k[others] == 1e3).all()
    assert (cache.v[others] == 1e3).all()


def test_rows_past_the_count_never_matter() -> None:
    cache, slots, counts = make(), torch.tensor([1, 3]), torch.tensor([5, 9])
    generator = torch.Generator().manual_seed(0)
    cache.rebuild(slots, torch.randn((2, 12, 2, 2, DIM), generator=generator), -1)
    q = torch.randn((2, 4, DIM), generator=generator)
    before = cache.attend(q, slots, counts, 9, 1.0, -1)
    cache.k[1, :, 5:], cache.k[3, :, 9:] = 1e30, 1e30
    cache.v[1, :, 5:], cache.v[3, :, 9:] = 1e30, 1e30
    assert torch.equal(cache.attend(q, slots, counts, 9, 1.0, -1), before)
    # One request alone takes another path, whose sums a processor may round otherwise.
    alone = cache.attend(q[:1], slots[:1], counts[:1], 5, 1.0, 1)
    assert torch.allclose(alone, before[:1], atol=1e-5)


def test_clear_removes_what_a_mask_cannot() -> None:
    cache = make()
    for part in (cache.k, cache.v):
        part.fill_(torch.nan)
    cache.clear(torch.tensor([2, 4]))
    for part in (cache.k, cache.v):
        assert [bool(x.isnan().any()) for x in part] == [True, True, False, True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes(dtype: torch.dtype) -> None:
    rope = LocalRope(table(DIM), neox_style=True, dtype=dtype)
    cache = WorkingCache(
        slots=3, budget=10, heads=2, head_dim=DIM, dtype=dtype, device=torch.device("cpu"),
        rope=rope,
    )  # fmt: skip
    assert cache.k.shape == cache.v.shape == (3, 2, 10, DIM)
    assert not cache.k.any()
    assert not cache.v.any()
    size = WorkingCache.slot_bytes(budget=10, heads=2, head_dim=DIM, dtype=dtype)
    assert size == 2 * 10 * 2 * DIM * (4 if dtype == torch.float32 else 2)
    assert cache.nbytes == 3 * size


def test_one_row_addressed_from_the_host() -> None:
    one, other = make(), make()
    k, v = torch.randn((2, 1, 2, DIM), generator=torch.Generator().manual_seed(0))
    one.put_one(3, 7, k[0], v[0])
    other.put(torch.tensor([3]), torch.tensor([7]), k, v)
    assert torch.equal(one.k, other.k)
    assert torch.equal(one.v, other.v)
    assert one.k[3, :, 7].any()


class Brought:
    """A kernel of some host: notes what it is given."""

    nbytes = 100

    def __init__(self, k: Tensor, v: Tensor, query_heads: int) -> None:
        if query_heads > 4:
            raise ValueError("too many heads")
        self.made_of, self.calls = (k, v, query_heads), 0

    def attend(
        self, q: Tensor, slots: Tensor, counts: Tensor, longest: int, scale: float
    ) -> Tensor:
        self.calls += 1
        return q.flatten(1) + longest


def test_a_host_brings_attention_for_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_ATTENTION", {})
    device = torch.device("meta")
    assert str(kernels.attention_for(device)) == "torch (device meta)"
    kernels.bring_attention("meta", "some_operation", Brought)
    choice = kernels.attention_for(device)
    assert str(choice) == "some_operation"
    assert str(kernels.kernels_for(device)) == "torch (device meta)", "for attention alone"
    assert str(kernels.attention_for(torch.device("cpu"))) == "torch (device cpu)"

    plain, cache = make(), make(choice=choice)
    assert cache.nbytes == plain.nbytes + Brought.nbytes
    made = cache._attention
    assert isinstance(made, Brought)
    assert made.made_of == (cache.k, cache.v, 2)
    assert made.calls == 1, "it is run once before anyone waits for it"
    q = torch.ones(1, 2, DIM)
    one = torch.tensor([1])
    assert torch.equal(cache.attend(q, one, one, 7, 1.0, 1), torch.full((1, 2 * DIM), 8.0))
    too_many = make(heads=5, choice=choice)
    assert str(too_many.kernels) == "torch (too many heads)"
