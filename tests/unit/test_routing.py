# SPDX-License-Identifier: Apache-2.0
"""From ``--speculative-config`` to an active or a refused launch, on vLLM's real objects."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from diffspec.hosts.surface import HostError
from diffspec.hosts.unsupported import refusals
from diffspec.hosts.vllm import facts as facts_module
from diffspec.hosts.vllm import routing
from diffspec.hosts.vllm.facts import WORKERS, draft_facts, worker_facts
from diffspec.hosts.vllm.report import MOST_LINES, UNRUN, start_up_lines
from diffspec.keys import KEYS, split_keys
from diffspec.settings import ConfigError, DiffSpecSettings
from diffspec.testbed.random_pair import RandomPair
from tests.unit.conftest import ON, Launch

pytest.importorskip("vllm")

pytestmark = pytest.mark.usefixtures("launch_environment")


def test_a_launch_without_our_keys_is_stock(engine_args: Launch, log: list[str]) -> None:
    config = engine_args().create_engine_config()
    assert not hasattr(config.speculative_config, "diffspec")
    assert config.parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert config.speculative_config.disable_padded_drafter_batch is False
    assert log == []


def test_no_speculation_at_all_is_stock(random_pair: RandomPair) -> None:
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(model=str(random_pair.target), enforce_eager=True).create_engine_config()
    assert config.speculative_config is None


def test_policy_full_is_stock_but_validated(launch: Launch, log: list[str]) -> None:
    from vllm.config import SpeculativeConfig

    config = launch({"draft_context_policy": "full", "diffspec-chunk-size": 32})
    assert type(config.speculative_config) is SpeculativeConfig
    assert not hasattr(config.speculative_config, "diffspec")
    assert config.parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert log == [
        "DiffSpec is off: no effect while draft_context_policy is full: diffspec_chunk_size"
    ]
    with pytest.raises(ConfigError, match="diffspec_chunk_size = 33"):
        launch({"diffspec_chunk_size": 33})


def test_policy_diffspec_activates(launch: Launch, log: list[str]) -> None:
    config = launch(ON | {"diffspec_chunk_size": 32, "diffspec-token-budget": 512})
    payload = config.speculative_config.diffspec
    assert type(payload) is dict
    settings = DiffSpecSettings.from_payload(payload)
    assert (settings.active, settings.chunk_size, settings.token_budget) == (True, 32, 512)
    assert config.speculative_config.disable_padded_drafter_batch is True
    assert config.parallel_config.worker_cls == WORKERS["cpu"]
    assert config.scheduler_config.async_scheduling is False
    assert len(log) <= MOST_LINES
    assert all(line.startswith("DiffSpec: ") for line in log)
    text = "\n".join(log)
    for part in ("512 tokens in chunks of 32", "depth 0 to 3", "trained for 4096", WORKERS["cpu"]):
        assert part in text
    assert "disable_padded_drafter_batch = true" in text
    # Nothing to pin: without Triton vLLM chooses the V1 runner by itself.
    assert "VLLM_USE_V2_MODEL_RUNNER" not in text
    assert refusals(worker_facts(config), ("config", "worker")) == []


def test_the_v1_runner_is_pinned_only_where_vllm_could_choose_v2(
    launch: Launch, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", True)
    # So that what the code sets is undone after the test.
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "")
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    launch(ON)
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert "VLLM_USE_V2_MODEL_RUNNER = 0" in "\n".join(log)
    log.clear()
    launch(ON)
    assert "VLLM_USE_V2_MODEL_RUNNER" not in "\n".join(log)


def test_one_engine_args_creates_two_configurations(engine_args: Launch) -> None:
    args = engine_args(ON | {"diffspec_chunk_size": 32})
    before = dict(args.speculative_config)
    first, second = args.create_engine_config(), args.create_engine_config()
    assert args.speculative_config == before
    assert first.speculative_config.diffspec == second.speculative_config.diffspec
    assert second.parallel_config.worker_cls == WORKERS["cpu"]


def test_separate_flags_work_and_survive_a_refusal(random_pair: RandomPair) -> None:
    from vllm.engine.arg_utils import EngineArgs

    user = {"draft_context_policy": "diffspec", "diffspec_token_budget": 100}
    args = EngineArgs(
        model=str(random_pair.target),
        enforce_eager=True,
        dtype="float32",
        spec_method="eagle3",
        spec_model=str(random_pair.draft),
        spec_tokens=2,
        speculative_config=user,
    )
    with pytest.raises(ConfigError, match="diffspec_token_budget = 100"):
        args.create_engine_config()
    assert args.speculative_config is user
    user["diffspec_token_budget"] = 1024
    config = args.create_engine_config()
    assert config.speculative_config.num_speculative_tokens == 2
    assert config.speculative_config.diffspec["token_budget"] == 1024
    assert set(user) == {"draft_context_policy", "diffspec_token_budget"}


def test_settings_travel_by_pickle_and_deepcopy(launch: Launch) -> None:
    config = launch(ON)
    payload = config.speculative_config.diffspec
    for moved in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert moved.speculative_config.diffspec == payload
        assert moved.parallel_config.worker_cls == WORKERS["cpu"]
        assert moved.speculative_config.disable_padded_drafter_batch is True


def test_the_compiled_graph_keeps_its_hash(launch: Launch) -> None:
    on, stock = launch(ON), launch()
    assert on.speculative_config.compute_hash() == stock.speculative_config.compute_hash()
    # The engine-wide hash also takes in a flag the host derives from unpadded batches.
    unpadded = launch({"disable_padded_drafter_batch": True})
    assert on.compute_hash() == unpadded.compute_hash()
    other = launch(ON | {"diffspec_token_budget": 512, "diffspec_chunk_size": 32})
    assert other.compute_hash() == on.compute_hash()


@pytest.mark.parametrize(
    ("own", "target", "given", "expected"),
    [
        (4096, 4096, None, 4096),
        (2048, 4096, None, 2048),  # vLLM raises max_position_embeddings to 4096 here
        (8192, 4096, None, 8192),  # and lowers the draft's max_model_len to 4096 here
        (4096, 1024, None, 4096),
        (4096, 4096, 1024, 1024),
    ],
)
def test_trained_window(
    launch: Launch,
    altered_draft: Callable[..., str],
    own: int,
    target: int,
    given: int | None,
    expected: int,
) -> None:
    spec: dict[str, Any] = {"model": altered_draft(max_position_embeddings=own)}
    if given is not None:
        spec["max_model_len"] = given
    config = launch(ON | spec, max_model_len=target)
    assert routing.trained_window(config.speculative_config) == expected
    assert config.speculative_config.diffspec["token_budget"] == min(2048, expected)


def test_a_budget_above_the_trained_window(
    launch: Launch, refused: Callable[..., str], altered_draft: Callable[..., str], log: list[str]
) -> None:
    short = altered_draft(max_position_embeddings=1000)
    assert launch(ON | {"model": short}).speculative_config.diffspec["token_budget"] == 960
    assert any("defaults to 960, not 2048" in line for line in log)
    text = refused({"model": short, "diffspec_token_budget": 1024})
    assert "at most 960: the draft's trained window is 1000" in text
    # A window too short for the default chunk size: the way out is named, and works.
    shorter = altered_draft(max_position_embeddings=300)
    assert "Set diffspec_chunk_size to 32" in refused({"model": shorter})
    fits = launch(ON | {"model": shorter, "diffspec_chunk_size": 32})
    assert fits.speculative_config.diffspec["token_budget"] == 288


def test_what_vllm_refuses_stays_vllms(launch: Launch) -> None:
    # A wrong key that is not ours, and a wrong value of vLLM's own key.
    for spec in ({"no_such_key": 1}, {"num_speculative_tokens": -1}):
        with pytest.raises(ValueError, match=next(iter(spec))):
            launch(ON | spec)


def test_a_hook_with_another_signature(
    engine_args: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.engine.arg_utils import EngineArgs

    def create_speculative_config(self: Any, model: Any, parallel: Any) -> str:
        return f"stock {model}"

    monkeypatch.setattr(EngineArgs, "create_speculative_config", create_speculative_config)
    routing.install()
    assert engine_args().create_speculative_config("model", "parallel") == "stock model"
    args = engine_args(ON)
    with pytest.raises(HostError, match="lacks parameter 'target_model_config'"):
        args.create_speculative_config("model", "parallel")
    assert args.speculative_config["draft_context_policy"] == "diffspec"


def test_another_version_is_refused_only_if_diffspec_is_asked_for(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm.__version__", "0.31.0")
    launch()
    launch({"draft_context_policy": "full"})
    with pytest.raises(HostError, match=r"host vLLM 0\.31\.0 is not compatible"):
        launch(ON)


def test_worker_facts_repeat_what_the_flags_said(launch: Launch) -> None:
    config = launch(ON)
    config.scheduler_config.async_scheduling = True
    config.parallel_config.worker_cls = "some.other.Worker"
    config.cache_config.cache_dtype = "fp8"
    text = "\n".join(refusals(worker_facts(config), ("config", "worker")))
    for part in ("--async-scheduling", "some.other.Worker", "--kv-cache-dtype fp8"):
        assert part in text
    assert text.count("\n") == 2


def test_facts_of_a_draft_without_feature_projection(
    launch: Launch, altered_draft: Callable[..., str]
) -> None:
    model = altered_draft(
        hidden_size=128, target_hidden_size=999, eagle_config={"use_aux_hidden_state": False}
    )
    # Without the projection target_hidden_size is not used, so it is not compared.
    assert draft_facts(launch({"model": model}).speculative_config).draft_reads_hidden_size == 128


def test_device_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms.interface import Platform, PlatformEnum

    assert facts_module.device_platform() == "cpu"
    for kind, name in ((PlatformEnum.CUDA, "cuda"), (PlatformEnum.ROCM, "rocm")):
        platform = Platform()
        platform._enum, platform.device_type = kind, "cuda"
        monkeypatch.setattr("vllm.platforms.current_platform", platform)
        assert facts_module.device_platform() == name


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let our side of a launch believe the device is a CUDA GPU; vLLM's side stays as it is."""
    for module in (facts_module, routing):
        monkeypatch.setattr(module, "device_platform", lambda: "cuda")


@pytest.mark.usefixtures("on_cuda")
def test_a_launch_on_cuda_gets_its_worker_and_a_warning(launch: Launch) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.diffspec")
    logger.addHandler(handler)
    try:
        config = launch(ON)
    finally:
        logger.removeHandler(handler)
    assert config.parallel_config.worker_cls == WORKERS["cuda"]
    warnings = [r.getMessage() for r in records if r.levelno == logging.WARNING]
    assert warnings == [UNRUN["cuda"]]
    assert refusals(worker_facts(config), ("config", "load")) == []


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("flag", ["attention_backend", "attention_config"])
def test_an_attention_backend_asked_for_on_cuda(
    launch: Launch, refused: Callable[..., str], flag: str
) -> None:
    def asked(name: str) -> dict[str, Any]:
        return {flag: name if flag == "attention_backend" else {"backend": name}}

    assert "--attention-backend FLASH_ATTN or TRITON_ATTN" in refused(**asked("FLASHINFER"))
    launch(ON, **asked("FLASH_ATTN"))
    launch(ON, **asked("auto"))


def test_an_attention_backend_asked_for_on_a_cpu_is_vllms_business(launch: Launch) -> None:
    launch(ON, attention_backend="FLASHINFER")


@pytest.mark.parametrize(("platform", "attribute"), [("cpu", "cpu_memory"), ("cuda", "memory")])
def test_the_workers_exist_and_know_their_memory(platform: str, attribute: str) -> None:
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.worker.gpu_worker import Worker

    cls = resolve_obj_by_qualname(WORKERS[platform])
    assert issubclass(cls, Worker)
    for name in ("init_device", "initialize_from_config", "execute_model"):
        assert getattr(cls, name).__module__ == "diffspec.hosts.vllm.worker"
    worker = object.__new__(cls)
    setattr(worker, f"requested_{attribute}", 7 << 30)
    for given, expected in ((None, 7 << 30), (2 << 30, 2 << 30)):
        worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=given)
        assert worker.memory_given() == expected


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_the_report_stays_short_whatever_it_has_to_say(platform: str) -> None:
    ours, _ = split_keys({spec.key: spec.default for spec in KEYS} | ON)
    settings = DiffSpecSettings.parse(ours, num_speculative_tokens=3)
    settings = replace(settings, notes=(*(f"remark {i}" for i in range(6)), *settings.notes))
    changes = {"a = 1": "x", "b = 2": "y", "c = 3": "z"}
    lines = start_up_lines(
        settings,
        depth=3,
        trained_window=None,
        max_model_len=131072,
        changes=changes,
        platform=platform,
    )
    assert len(lines) == MOST_LINES
    assert (UNRUN["cuda"] in lines) is (platform == "cuda")
    text = "\n".join(lines)
    for part in (*settings.notes, *changes, "drafted from retrieved chunks"):
        assert part in text
