# SPDX-License-Identifier: Apache-2.0
"""The doctor on the lane that was qualified on Ascend: the owner's command and what departs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from diffspec.doctor.arguments import SPECULATIVE
from diffspec.doctor.diagnose import Question, diagnose
from diffspec.doctor.findings import Finding
from diffspec.hosts import ascend_lane

from .doctor_models import EAGLE3_27B, OWNERS_KEYS, QWEN35_27B, write_draft, write_model
from .doctor_python import surroundings
from .test_doctor_command import only, wrong

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "evidence" / "sage-mate-20260904-tp4-graph.json").read_text())
Ask = Callable[..., list[Finding]]

OWNERS = (
    *("--dtype", "bfloat16", "--tensor-parallel-size", "4", "--max-num-seqs", "4"),
    *("--no-enable-prefix-caching", "--no-async-scheduling"),
)
GRAPHS = (
    "--compilation-config",
    '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[4,8,12,16]}',
)


@pytest.fixture
def lane(tmp_path: Path) -> Ask:
    """Findings about the owner's own command with ``words`` after it."""
    target = write_model(tmp_path / "qwen", QWEN35_27B)
    draft = write_draft(tmp_path / "eagle", EAGLE3_27B)
    spec = OWNERS_KEYS | {"model": str(draft)}

    def run(*words: str, left_out: tuple[str, ...] = (), long: bool = True) -> list[Finding]:
        flags = [w for w in (*OWNERS, *GRAPHS) if w not in left_out]
        command = ["vllm", "serve", str(target), *flags, SPECULATIVE, json.dumps(spec), *words]
        prefix = ["env", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"] if long else []
        question = Question(command=[*prefix, *command], platform="ascend")
        return list(diagnose(question, surroundings(tmp_path)).findings)

    return run


def test_the_owners_command_passes(lane: Ask) -> None:
    found = lane("--language-model-only")
    assert wrong(found) == []
    assert only(found, "lane.qualified", "ok")
    # That this machine is another one, and that the record has M-RoPE off, which this configuration
    # of the target has.
    known = {"host.elsewhere", "pair.target_mrope", "lane.recurrent"}
    assert {f.id for f in wrong(found, "warning")} == known
    assert (
        "drafts at least one token in every step" in only(found, "lane.recurrent", "warning").what
    )


def test_the_target_is_refused_with_images_as_a_launch_refuses_it(lane: Ask) -> None:
    assert [f.id for f in wrong(lane())] == ["pair.multimodal"]
    assert only(lane(), "pair.multimodal").fix.startswith("serve it with --language-model-only")


def test_the_lane_is_that_of_the_record() -> None:
    settings = RECORD["settings"]
    assert settings["tensor_parallel_size"] == ascend_lane.TENSOR_PARALLEL
    assert settings["dtype"] == ascend_lane.DTYPE
    assert settings["cudagraph_mode"] == ascend_lane.GRAPHS
    assert settings["cudagraph_capture_sizes"] == list(ascend_lane.CAPTURE_SIZES)


def test_the_records_own_command_passes(tmp_path: Path) -> None:
    models = {
        "TARGET": str(write_model(tmp_path / "qwen", QWEN35_27B)),
        "DRAFT": str(write_draft(tmp_path / "eagle", EAGLE3_27B)),
    }
    command = RECORD["command"]
    for name, folder in models.items():
        assert command.count(name) == 1
        command = command.replace(name, folder)
    setting = [f"{name}={value}" for name, value in RECORD["environment"].items()]
    words = ["env", *setting, *shlex.split(command), "--language-model-only"]
    question = Question(command=words, platform="ascend")
    found = list(diagnose(question, surroundings(tmp_path)).findings)
    assert wrong(found) == []
    assert only(found, "lane.qualified", "ok")


@pytest.mark.parametrize(
    ("words", "id", "part"),
    [
        (("--async-scheduling",), "command.async_scheduling", "--async-scheduling"),
        (("--kv-cache-dtype", "int8"), "command.quantised_kv", "--kv-cache-dtype int8"),
        (("-tp", "8"), "command.draft_tensor_parallel", "draft_tensor_parallel_size = 4"),
        (("-pp", "2"), "command.pipeline_parallel", "--pipeline-parallel-size 2"),
        (
            ("--additional-config", '{"draft_window_size": 512}'),
            "command.ascend_draft_window",
            "draft_window_size = 512",
        ),
        (
            ("--additional-config.xlite_graph_config.enabled", "true"),
            "command.ascend_xlite",
            "enables xlite_graph_config",
        ),
        (("-dp", "2"), "command.data_parallel", "--data-parallel-size 2"),
    ],
)
def test_what_the_lane_forbids(lane: Ask, words: tuple[str, ...], id: str, part: str) -> None:
    finding = only(lane(*words), id)
    assert part in finding.what
    assert finding.fix


@pytest.mark.parametrize(
    ("words", "left_out", "id", "part"),
    [
        ((), ("--no-enable-prefix-caching",), "lane.prefix_caching", "is left to vLLM"),
        (("--enable-prefix-caching",), (), "lane.prefix_caching", "prefix caching is on"),
        (("--quantization", "ascend"), (), "lane.quantisation", "quantised weights (ascend)"),
        ((), ("--no-async-scheduling",), "lane.async_scheduling", "is not switched off"),
        (("--dtype", "half"), (), "lane.dtype", "run in float16: qualified in bfloat16"),
        ((), GRAPHS, "lane.graphs", "graph mode left to vLLM: qualified with FULL_DECODE_ONLY"),
        (("--enforce-eager",), (), "lane.graphs", "--enforce-eager: qualified with"),
        (("--max-num-seqs", "8"), (), "lane.capture_sizes", "needs 32 rows but the largest"),
        (
            ("-cc", '{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4, 6]}'),
            (),
            "lane.capture_sizes",
            "[6] are no multiples of num_speculative_tokens + 1 = 4",
        ),
        (
            ("-cc.cudagraph_mode", "FULL_DECODE_ONLY", "--cudagraph-capture-sizes", "4", "6"),
            GRAPHS,
            "lane.capture_sizes",
            "[6] are no multiples of num_speculative_tokens + 1 = 4",
        ),
    ],
)
def test_what_was_not_qualified_is_a_warning(
    lane: Ask, words: tuple[str, ...], left_out: tuple[str, ...], id: str, part: str
) -> None:
    finding = only(lane(*words, left_out=left_out), id, "warning")
    assert part in finding.what
    assert finding.fix


def test_a_long_context_needs_the_lanes_variable(lane: Ask) -> None:
    finding = only(lane(long=False), "lane.long_max_model_len", "warning")
    assert "the served length 262144 is above the draft's 4096" in finding.what
    short = lane("--max-model-len", "4096", long=False)
    assert not [f for f in short if f.id == "lane.long_max_model_len"]
