# SPDX-License-Identifier: Apache-2.0
"""The replacement for the CPU rejection sampler's batch expansion."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffspec.hosts.vllm.sampling_fix import expand_batch_to_tokens, install

pytestmark = pytest.mark.usefixtures("one_thread")


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=8),
    dtype=st.sampled_from([torch.float32, torch.int32, torch.int64]),
    cu_dtype=st.sampled_from([torch.int32, torch.int64]),
    replace=st.sampled_from([(0, 0), (0, 1), (2, 9)]),
)
def test_each_value_is_repeated(
    values: list[tuple[int, int]],
    dtype: torch.dtype,
    cu_dtype: torch.dtype,
    replace: tuple[int, int],
) -> None:
    x = torch.tensor([value for value, _ in values], dtype=dtype)
    counts = torch.tensor([count for _, count in values])
    wanted = [
        replace[1] if value == replace[0] else value
        for value, count in values
        for _ in range(count)
    ]
    out = expand_batch_to_tokens(x, counts.cumsum(0).to(cu_dtype), len(wanted), *replace)
    assert out.dtype == dtype
    assert out.tolist() == wanted
    assert x.tolist() == [value for value, _ in values]


def test_the_default_replaces_nothing() -> None:
    x = torch.tensor([0.0, 0.7])
    out = expand_batch_to_tokens(x, torch.tensor([2, 3]), 3)
    assert torch.equal(out, torch.tensor([0.0, 0.0, 0.7]))


@pytest.mark.parametrize(
    ("version", "device", "replaced"),
    [("0.28.0", "cpu", True), ("0.28.1", "cpu", True), ("0.28.0", "cuda", False),
     ("0.29.0", "cpu", False), ("0.280.0", "cpu", False)],
)  # fmt: skip
def test_installed_only_where_broken(version: str, device: str, replaced: bool) -> None:
    theirs = object()
    module = SimpleNamespace(expand_batch_to_tokens=theirs)
    for _ in range(2):
        assert install(version, device, module) is replaced
        wanted = expand_batch_to_tokens if replaced else theirs
        assert module.expand_batch_to_tokens is wanted
