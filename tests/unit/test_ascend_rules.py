# SPDX-License-Identifier: Apache-2.0
"""What is refused on Ascend by name, what is only outside the qualified lane, and the one warning
about it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from diffspec.hosts import ascend_lane
from diffspec.hosts.ascend_unsupported import ASCEND_UNSUPPORTED
from diffspec.hosts.launch import LaunchFacts
from diffspec.hosts.unsupported import NOT_ON_ASCEND, UNSUPPORTED, refusals

ALL = ("config", "load")
#: The qualified launch, as the owner describes it.
LANE = LaunchFacts(
    platform="npu",
    device_name="Ascend910B2",
    method="eagle3",
    depth=3,
    draft_sample_method=None,
    async_scheduling=False,
    worker_cls="auto",
    our_worker_cls="d.W",
    v2_runner=False,
    attention_class="AscendAttentionBackendImpl",
    prefix_caching=False,
    enforce_eager=False,
    graph_mode="FULL_DECODE_ONLY",
    capture_sizes=(4, 8, 12, 16),
    max_num_seqs=4,
    tensor_parallel_size=4,
    draft_tensor_parallel_size=4,
    pipeline_parallel_size=1,
    model_dtype="bfloat16",
    kv_cache_dtype="auto",
    target_hybrid=True,
    target_vocab_size=248320,
    draft_vocab_size=248320,
    draft_layers=1,
)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ascend_draft_window": (
        {"additional_config": {"draft_window_size": 512}},
        "draft_window_size = 512",
    ),
    "ascend_xlite": (
        {"additional_config": {"xlite_graph_config": {"enabled": True}}},
        "xlite_graph_config",
    ),
    "ascend_lmhead_parallel": (
        {"additional_config": {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 2}}},
        "lmhead_tensor_parallel_size",
    ),
    "ascend_unpadded_batches": ({"unpadded_batches": True}, "disable_padded_drafter_batch = true"),
    "ascend_310p": ({"device_name": "Ascend310P3"}, "Ascend310P3"),
    "ascend_attention": (
        {"attention_class": "AscendC8AttentionBackendImpl"},
        "class AscendC8AttentionBackendImpl",
    ),
    # Rows for every device, as far as Ascend's own features go through them.
    "data_parallel": ({"data_parallel_size": 2}, "--data-parallel-size 2"),
    "prefill_context_parallel": ({"prefill_context_parallel_size": 2}, "prefill-context"),
    "decode_context_parallel": ({"decode_context_parallel_size": 2}, "decode-context"),
    "pipeline_parallel": ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"),
    "quantised_kv": ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype int8"),
    "async_scheduling": ({"async_scheduling": True}, "--async-scheduling"),
    "vspec": ({"vspec": "HUST_VSPEC_ENABLED=1"}, "vSpec is active"),
    "target_mla": ({"target_mla": True}, "multi-head latent"),
    "draft_mrope": ({"draft_mrope": True}, "mrope_section"),
    "draft_vocabulary": ({"draft_vocab_size": 151936}, "vocab_size = 151936 but the target 248320"),
    "draft_tensor_parallel": ({"draft_tensor_parallel_size": 1}, "draft_tensor_parallel_size = 1"),
}


def test_the_lane_itself_is_neither_refused_nor_warned_about() -> None:
    assert refusals(LANE, ALL) == []
    assert ascend_lane.departures(LANE) == []
    assert ascend_lane.warning(LANE) is None
    assert refusals(LaunchFacts(platform="npu"), ALL) == []


@pytest.mark.parametrize("id", REFUSED)
def test_what_cannot_work_is_refused_by_name(id: str) -> None:
    change, part = REFUSED[id]
    facts = replace(LANE, **change)
    (row,) = (row for row in UNSUPPORTED if row.id == id)
    (message,) = refusals(facts, ALL)
    assert refusals(facts, (row.where,)) == [message]
    assert part in message
    assert re.search(r"; (remove|use|set|unset|disable) |[:;] use ", message), message


def test_every_row_for_ascend_has_a_case_and_holds_nowhere_else() -> None:
    assert {row.id for row in ASCEND_UNSUPPORTED} <= set(REFUSED)
    for row in ASCEND_UNSUPPORTED:
        assert row.platform == "npu"
        facts = replace(LaunchFacts(), **REFUSED[row.id][0])
        for platform in (None, "cpu", "cuda"):
            assert not row.applies(replace(facts, platform=platform))


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"draft_window_size": None},
        {"xlite_graph_config": {"enabled": False}},
        {"xlite_graph_config": {"enabled": "false"}},
        {"xlite_graph_config": None, "finegrained_tp_config": "x"},
        {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 0}},
        {"finegrained_tp_config": {"lmhead_tensor_parallel_size": "0"}},
    ],
)
def test_keys_that_are_off_refuse_nothing(config: dict[str, Any] | None) -> None:
    assert refusals(replace(LANE, additional_config=config), ALL) == []


@pytest.mark.parametrize(
    "change",
    [
        {"tensor_parallel_size": 2, "draft_tensor_parallel_size": 2},
        {"target_hybrid": True},
        {"attention_backend": "CUSTOM"},
        {"padded_batches": True},
    ],
)
def test_rows_of_vllms_own_hosts_are_not_judged(change: dict[str, Any]) -> None:
    assert refusals(replace(LANE, **change), ALL) == []
    assert len(NOT_ON_ASCEND) == 3


OUTSIDE: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": ({"model_dtype": "float16"}, "run in float16: qualified in bfloat16 alone"),
    "tensor_parallel": ({"tensor_parallel_size": 8}, "size 8: qualified at 4 alone"),
    "prefix_caching": ({"prefix_caching": True}, "prefix caching is on"),
    "async_scheduling": ({"async_scheduling": None}, "not switched off"),
    "quantisation": ({"quantisation": "ascend"}, "quantised weights (ascend)"),
    "graphs": ({"enforce_eager": True}, "--enforce-eager: qualified with FULL_DECODE_ONLY"),
    "capture_sizes": ({"capture_sizes": (4, 6)}, "[6] are no multiples of"),
    "vocabulary": ({"target_vocab_size": 152064}, "a vocabulary of 152064"),
    "target_mrope": ({"target_mrope": True}, "M-RoPE"),
}


@pytest.mark.parametrize("id", OUTSIDE)
def test_what_is_outside_the_lane_is_named_with_what_is_known(id: str) -> None:
    change, part = OUTSIDE[id]
    (found,) = ascend_lane.departures(replace(LANE, **change))
    assert found.id == id
    assert part in found.what
    assert found.fix
    line = ascend_lane.warning(replace(LANE, **change))
    assert line is not None
    assert found.what in line
    assert found.known in line


def test_a_recurrent_target_is_named_though_the_lane_had_one() -> None:
    (found,) = ascend_lane.notes(LANE)
    assert found.id == "recurrent"
    line = ascend_lane.note(LANE)
    assert line is not None
    assert "recurrent target" in line
    assert "drafts at least one token in every step" in line
    assert "never run" in line
    assert ascend_lane.notes(replace(LANE, target_hybrid=False)) == []
    assert ascend_lane.note(replace(LANE, platform="cpu")) is None


def test_every_requirement_has_a_case() -> None:
    assert [row.id for row in ascend_lane.LANE] == list(OUTSIDE)


def test_everything_outside_comes_in_one_warning() -> None:
    changes: dict[str, Any] = {}
    for id in ("dtype", "tensor_parallel", "prefix_caching", "vocabulary"):
        changes |= OUTSIDE[id][0]
    line = ascend_lane.warning(replace(LANE, **changes))
    assert line is not None
    assert line.startswith("DiffSpec: outside of what was qualified on Ascend: ")
    assert "\n" not in line
    assert line.count(" (") == 4
    # On another device the lane says nothing.
    for platform in (None, "cpu", "cuda"):
        assert ascend_lane.warning(replace(LANE, platform=platform, **changes)) is None


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"prefix_caching": None}, "left to vLLM"),
        ({"graph_mode": None}, "graph mode left to vLLM"),
        ({"graph_mode": "PIECEWISE"}, "graph mode PIECEWISE"),
        ({"max_num_seqs": 8}, "needs 32 rows but the largest captured size is 16"),
        ({"depth": 5}, "no multiples of num_speculative_tokens + 1 = 6"),
    ],
)
def test_other_ways_out_of_the_lane(change: dict[str, Any], part: str) -> None:
    (found,) = ascend_lane.departures(replace(LANE, **change))
    assert part in found.what


@pytest.mark.parametrize(
    "change",
    [{"capture_sizes": None}, {"capture_sizes": ()}, {"depth": None}, {"max_num_seqs": None}],
)
def test_what_is_not_known_does_not_depart(change: dict[str, Any]) -> None:
    assert ascend_lane.departures(replace(LANE, **change)) == []
