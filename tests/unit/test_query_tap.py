# SPDX-License-Identifier: Apache-2.0
"""The query tap on a stand-in for an attention layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from diffspec.hosts.vllm.query_tap import QueryTap

REQUESTS, ROWS, HEADS, DIM = 4, 3, 2, 5


class Attention:
    """Stands for a backend's attention implementation: what it is given it notes and returns."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def forward(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor,
        attn_metadata: Any, output: Tensor | None = None, scale: float = 1.0,
    ) -> tuple[str, float]:  # fmt: skip
        self.seen.append((layer, query, key, value, kv_cache, attn_metadata, output))
        return "result", scale


def make_tap(impl: Any = None) -> QueryTap:
    return QueryTap(
        SimpleNamespace(impl=impl or Attention()), max_requests=REQUESTS, rows_per_request=ROWS,
        heads=HEADS, head_dim=DIM, dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip


def step(tap: QueryTap, rows: list[int], *, flat: bool = True, padding: int = 2) -> Tensor:
    """Run a step with so many rows per request; returns the queries ``[n, heads, d]``."""
    n = sum(rows)
    query = torch.arange((n + padding) * HEADS * DIM).float().view(-1, HEADS, DIM)
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    metadata = SimpleNamespace(num_actual_tokens=n, query_start_loc=starts)
    given = query.flatten(1) if flat else query
    key = torch.zeros(1)
    result = tap.impl.forward("layer", given, key, key, key, metadata, "out", scale=2.0)
    assert result == ("result", 2.0)
    assert tap.impl.seen[-1] == ("layer", given, key, key, key, metadata, "out")
    kept = query[:n].clone()
    query.fill_(-1)  # the host reuses its memory
    return kept


@pytest.mark.parametrize("flat", [True, False])
def test_a_decoding_step_is_copied_whole(flat: bool) -> None:
    tap = make_tap()
    query = step(tap, [3, 1, 3], flat=flat)
    for last in ([2, 3, 6], [0, 3, 5]):  # all accepted; drafts of the outer ones rejected
        assert torch.equal(tap.rows(torch.tensor(last)), query[last])


def test_a_prefill_longer_than_the_buffer_keeps_the_last_rows_of_each() -> None:
    tap = make_tap()
    query = step(tap, [3, 20, 1, 2])
    for last in ([2, 22, 23, 25], [0, 22, 23, 24], [1, 20, 23, 25]):
        assert torch.equal(tap.rows(torch.tensor(last)), query[last])
    query = step(tap, [1, 20])  # nothing lies before the first request
    assert torch.equal(tap.rows(torch.tensor([0, 18])), query[[0, 18]])
    query = step(tap, [2, 1])
    assert torch.equal(tap.rows(torch.tensor([0, 2])), query[[0, 2]])


def test_exactly_full_and_one_more() -> None:
    tap = make_tap()
    for rows in ([3, 3, 3, 3], [3, 3, 3, 4]):
        query = step(tap, rows, padding=0)
        last = (torch.tensor(rows).cumsum(0) - 1).tolist()
        assert torch.equal(tap.rows(torch.tensor(last)), query[last])


def test_warm_up_without_metadata_goes_through() -> None:
    tap = make_tap()
    query = torch.ones((50, HEADS * DIM))
    assert tap.impl.forward(None, query, query, query, None, None) == ("result", 1.0)
    assert tap.calls == 0
    assert not tap.buffer.any()
    step(tap, [1])
    assert tap.calls == 1


def test_a_second_tap_is_refused_and_removal_restores() -> None:
    impl = Attention()
    tap = make_tap(impl)
    with pytest.raises(RuntimeError, match="tapped already"):
        make_tap(impl)
    tap.remove()
    assert vars(impl).keys() == {"seen"}
    assert impl.forward.__func__ is Attention.forward
    make_tap(impl).remove()


def test_size() -> None:
    assert make_tap().nbytes == REQUESTS * ROWS * HEADS * DIM * 4
