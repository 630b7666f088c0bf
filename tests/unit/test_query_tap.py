# SPDX-License-Identifier: Apache-2.0
"""The query tap on a stand-in for an attention layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from diffspec.hosts.vllm import query_tap
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


def rows_of(tap: QueryTap, last: list[int], rows: list[int]) -> Tensor:
    """What the tap has at rows ``last`` of a step with so many rows per request."""
    return tap.rows(torch.tensor(last), torch.tensor(rows).cumsum(0).int())


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
def test_a_decoding_step(flat: bool) -> None:
    tap = make_tap()
    query = step(tap, [3, 1, 3], flat=flat)
    for last in ([2, 3, 6], [0, 3, 5]):  # all accepted; drafts of the outer ones rejected
        assert torch.equal(rows_of(tap, last, [3, 1, 3]), query[last])


def test_a_prefill_longer_than_the_buffer_keeps_the_last_rows_of_each() -> None:
    tap = make_tap()
    query = step(tap, [3, 20, 1, 2])
    for last in ([2, 22, 23, 25], [0, 22, 23, 24], [1, 20, 23, 25]):
        assert torch.equal(rows_of(tap, last, [3, 20, 1, 2]), query[last])
    query = step(tap, [1, 20])  # nothing lies before the first request
    assert torch.equal(rows_of(tap, [0, 18], [1, 20]), query[[0, 18]])
    query = step(tap, [2, 1])
    assert torch.equal(rows_of(tap, [0, 2], [2, 1]), query[[0, 2]])


def test_exactly_full_and_one_more() -> None:
    tap = make_tap()
    for rows in ([3, 3, 3, 3], [3, 3, 3, 4]):
        query = step(tap, rows, padding=0)
        last = (torch.tensor(rows).cumsum(0) - 1).tolist()
        assert torch.equal(rows_of(tap, last, rows), query[last])


class Recording(TorchDispatchMode):
    """What a CUDA graph keeps of a piece of Python: its tensor operations and their addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Do the same to the same memory."""
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            assert again.data_ptr() == out.data_ptr(), f"{func} allocates"


class FullGraph:
    """A captured decoding step of the host: ``requests`` times K + 1 rows in static buffers."""

    def __init__(self, tap: QueryTap, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests, self.rows = requests, requests * ROWS
        self.query = torch.zeros((self.rows, HEADS, DIM))
        self.starts = torch.arange(0, self.rows + 1, ROWS, dtype=torch.int32)
        metadata = SimpleNamespace(num_actual_tokens=self.rows, query_start_loc=self.starts)
        with monkeypatch.context() as patch, Recording() as self.recording:
            patch.setattr(query_tap, "_in_capture", lambda tensor: True)
            tap.impl.forward("layer", self.query, None, None, None, metadata)

    def replay(self, requests: int, seed: int) -> Tensor:
        """Run a step of so many real requests; the host points those that only pad at the end."""
        n = requests * ROWS
        self.query.copy_(torch.rand(self.query.shape, generator=torch.manual_seed(seed)))
        self.starts[: requests + 1] = torch.arange(0, n + 1, ROWS)
        self.starts[requests + 1 :] = n
        self.recording.replay()
        return self.query[:n].clone()


def test_replays_of_a_captured_step(monkeypatch: pytest.MonkeyPatch) -> None:
    tap = make_tap()
    graph = FullGraph(tap, REQUESTS, monkeypatch)
    calls = tap.calls
    for seed, requests in enumerate((4, 1, 3, 4)):
        query = graph.replay(requests, seed)
        rows = [ROWS] * requests
        for accepted in range(ROWS):
            last = [ROWS * i + accepted for i in range(requests)]
            assert torch.equal(rows_of(tap, last, rows), query[last])
    assert tap.calls == calls


def test_replays_after_a_prefill_and_the_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    tap = make_tap()
    small, large = (FullGraph(tap, requests, monkeypatch) for requests in (2, REQUESTS))
    for seed, graph in enumerate((small, large, small)):
        # Python ran last in a step of quite other rows; what it left behind must not matter.
        query = step(tap, [2, 30, 1])
        assert torch.equal(rows_of(tap, [1, 30, 32], [2, 30, 1]), query[[1, 30, 32]])
        query = graph.replay(2, seed)
        assert torch.equal(rows_of(tap, [1, 5], [ROWS, ROWS]), query[[1, 5]])


def test_silence_is_told_from_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    tap = make_tap()
    assert not tap.saw(1)
    step(tap, [1])
    assert tap.saw(1)
    assert not tap.saw(1), "asked about the next step, which never came here"
    graph = FullGraph(tap, 2, monkeypatch)
    assert tap.saw(graph.rows)
    assert tap.saw(graph.rows), "may have been a replay"
    assert not tap.saw(graph.rows + 1), "larger than every graph"


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
    indices = ROWS + REQUESTS + REQUESTS * ROWS
    assert make_tap().nbytes == REQUESTS * ROWS * HEADS * DIM * 4 + indices * 8
