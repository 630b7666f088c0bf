# SPDX-License-Identifier: Apache-2.0
"""The query tap in and out of captured graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from diffspec.hosts.ascend.query_tap import AscendQueryTap
from tests.unit.naive import Recorder

DEPTH, HEADS, DIM = 3, 2, 4
ROWS, REQUESTS = DEPTH + 1, 4


@pytest.fixture
def tap() -> AscendQueryTap:
    impl = SimpleNamespace(forward=lambda *_: None)
    return AscendQueryTap(
        SimpleNamespace(impl=impl), max_requests=REQUESTS, rows_per_request=ROWS, heads=HEADS,
        head_dim=DIM, dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip


def run(tap: AscendQueryTap, query: Tensor, starts: Any, rows: int) -> None:
    metadata = SimpleNamespace(num_actual_tokens=rows, query_start_loc=starts)
    tap.impl.forward(None, query, None, None, None, metadata)


def queries(rows: int, first: float = 0.0) -> Tensor:
    return first + torch.arange(rows).float()[:, None, None].expand(rows, HEADS, DIM)


def rows_seen(tap: AscendQueryTap, last: list[int], ends: list[int]) -> list[float]:
    found = tap.rows(torch.tensor(last), torch.tensor(ends))
    assert (found == found[:, :1, :1]).all()
    return found[:, 0, 0].tolist()


def test_a_captured_step_is_one_copy(tap: AscendQueryTap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.npu, "is_current_stream_capturing", lambda: True)
    query = queries(8)
    with Recorder() as seen:
        # Row starts in a tensor that will be gone when the graph is replayed: never looked at.
        run(tap, query, None, 8)
    assert seen.operations == ["aten.copy_.default"]
    # What a replay does with a later step of two requests of K + 1 rows each.
    tap.buffer[:8].copy_(queries(8, 100.0))
    assert tap.saw(8)
    assert tap.saw(8), "a replay enters nothing and is no step without the tap"
    assert not tap.saw(9), "no graph is that large"
    assert rows_seen(tap, [3, 5], [4, 8]) == [103.0, 105.0]


def test_a_graph_with_more_rows_than_there_can_be_requests(
    tap: AscendQueryTap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.npu, "is_current_stream_capturing", lambda: True)
    run(tap, queries(20), None, 20)
    assert tap.buffer[:, 0, 0].tolist() == list(range(ROWS * REQUESTS))


def test_a_step_outside_graphs_keeps_each_requests_last_rows(tap: AscendQueryTap) -> None:
    starts = torch.tensor([0, 9, 13, 14], dtype=torch.int32)
    run(tap, queries(20), starts, 14)  # rows behind the 14th only pad
    assert rows_seen(tap, [8, 10, 13], [9, 13, 14]) == [8.0, 10.0, 13.0]


def test_a_full_batch_with_a_request_that_only_pads(tap: AscendQueryTap) -> None:
    starts = torch.tensor([0, 4, 8, 12, 16, 20], dtype=torch.int32)
    run(tap, queries(20), starts, 16)
    assert rows_seen(tap, [3, 7, 11, 13], [4, 8, 12, 16]) == [3.0, 7.0, 11.0, 13.0]
