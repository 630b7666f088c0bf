# SPDX-License-Identifier: Apache-2.0
"""A launch on an NPU as far as it can be judged where there is none: on vLLM's real objects, with
our side told that the device is one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from diffspec.hosts.surface import HostError
from diffspec.hosts.vllm import facts as facts_module
from diffspec.hosts.vllm import routing
from diffspec.hosts.vllm.facts import WORKERS
from diffspec.hosts.vllm.report import UNRUN
from diffspec.keys import ConfigError
from tests.unit.conftest import ON, Launch

pytest.importorskip("vllm")

pytestmark = pytest.mark.usefixtures("launch_environment", "on_npu")


@pytest.fixture
def on_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (facts_module, routing):
        monkeypatch.setattr(module, "device_platform", lambda: "npu")


@pytest.fixture
def any_surface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the check that fails here: vLLM-Ascend is not installed."""
    monkeypatch.setattr(routing, "require_surface", lambda *_, **__: None)


def test_without_vllm_ascend_it_is_refused(launch: Launch) -> None:
    assert importlib.util.find_spec("vllm_ascend") is None
    with pytest.raises(HostError) as caught:
        launch(ON)
    text = str(caught.value)
    assert "host vLLM-Ascend (absent) with vLLM 0.28.0 is not compatible" in text
    assert text.count("vllm_ascend cannot be imported") == 1
    assert "Tested: vLLM-Ascend 0.25.1rc1 with vLLM 0.25.1, vLLM-Ascend 0.28.0rc1 with" in text


def test_a_launch_without_diffspec_does_not_ask(launch: Launch) -> None:
    assert launch({}).speculative_config is not None


@pytest.mark.usefixtures("any_surface")
def test_what_cannot_work_comes_in_one_message(refused: Callable[..., str]) -> None:
    text = refused(
        {"disable_padded_drafter_batch": True},
        additional_config={
            "draft_window_size": 512,
            "xlite_graph_config": {"enabled": True},
            "finegrained_tp_config": {"lmhead_tensor_parallel_size": 2},
        },
    )
    assert "(4 problems)" in text
    for part in (
        "draft_window_size = 512",
        "xlite_graph_config",
        "lmhead_tensor_parallel_size",
        "disable_padded_drafter_batch = true",
    ):
        assert part in text


@pytest.mark.usefixtures("any_surface")
@pytest.mark.parametrize(("kind", "wrong"), [("_310P", True), ("A2", False), (None, False)])
def test_a_build_for_310p_is_refused_before_workers_start(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, kind: str | None, wrong: bool
) -> None:
    build = ModuleType("vllm_ascend._build_info")
    if kind is not None:
        build.__dict__["__device_type__"] = kind
    monkeypatch.setitem(sys.modules, "vllm_ascend", ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend._build_info", build)
    if wrong:
        with pytest.raises(ConfigError, match="Ascend 310P: a 310P has a worker"):
            launch(ON)
    else:
        assert launch(ON).speculative_config is not None


@pytest.mark.usefixtures("any_surface")
def test_what_is_outside_the_lane_comes_in_one_warning(launch: Launch, log: list[str]) -> None:
    launch(
        ON,
        enforce_eager=False,
        compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4]},
        max_num_seqs=4,
    )
    (line,) = [text for text in log if "qualified on Ascend" in text]
    for part in (
        "the models run in float32: qualified in bfloat16 alone (float16 and float32 were run on",
        "tensor-parallel size 1: qualified at 4 alone",
        "prefix caching is on: the qualified launch had it off",
        "--max-num-seqs 4 needs 16 rows but the largest captured size is 4",
        "a vocabulary of 512: the qualified pair has 248320",
    ):
        assert part in line
    # What is as it was there is not mentioned.
    assert "graph mode" not in line
    assert "quantised" not in line


@pytest.mark.usefixtures("any_surface")
def test_a_launch_closer_to_the_lane_has_less_to_say(launch: Launch, log: list[str]) -> None:
    launch(ON, dtype="bfloat16", enable_prefix_caching=False, enforce_eager=True)
    (line,) = [text for text in log if "qualified on Ascend" in text]
    assert "prefix caching" not in line
    assert "bfloat16" not in line
    assert "--enforce-eager: qualified with FULL_DECODE_ONLY alone" in line


@pytest.mark.usefixtures("any_surface")
def test_it_gets_its_worker_keeps_padded_batches_and_schedules_synchronously(
    engine_args: Launch, log: list[str]
) -> None:
    args = engine_args(ON)
    assert args.async_scheduling is None
    config = args.create_engine_config()
    assert args.async_scheduling is False, "vLLM itself would leave that to the platform"
    assert config.parallel_config.worker_cls == WORKERS["npu"]
    assert config.speculative_config.disable_padded_drafter_batch is False
    assert UNRUN["npu"] in log
    text = "\n".join(log)
    assert "set async_scheduling = false: drafting needs exact acceptance" in text
    assert "disable_padded_drafter_batch" not in text
    again = args.create_engine_config()
    assert again.speculative_config.diffspec == config.speculative_config.diffspec


@pytest.mark.usefixtures("any_surface")
def test_what_the_user_said_of_scheduling_stays(engine_args: Launch, log: list[str]) -> None:
    args = engine_args(ON, async_scheduling=False)
    args.create_engine_config()
    assert "async_scheduling = false" not in "\n".join(log)
