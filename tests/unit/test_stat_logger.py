# SPDX-License-Identifier: Apache-2.0
"""From a launch to the text of ``/metrics``: vLLM's own loggers and registry, no engine."""

from __future__ import annotations

import functools
import logging
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from diffspec.hosts.vllm import metrics_hook
from diffspec.hosts.vllm.metrics_hook import channel_of
from diffspec.metrics import METRICS, PREFIX, layout
from diffspec.telemetry import ChannelWriter
from tests.unit.conftest import ON, Launch

pytest.importorskip("vllm")

from vllm.distributed import parallel_state
from vllm.v1.engine import async_llm
from vllm.v1.metrics.loggers import (
    AggregateStatLoggerBase,
    LoggingStatLogger,
    StatLoggerBase,
    StatLoggerManager,
)
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.sample import rejection_sampler
from vllm.v1.spec_decode.eagle import EagleProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from diffspec.hosts.vllm.stat_logger import Collectors, DiffSpecStatLogger
from diffspec.hosts.vllm.worker import attach

pytestmark = pytest.mark.usefixtures("launch_environment")

DEPTH = 3
LOADER = "load_stat_logger_plugin_factories"
STOCK_LOADER = getattr(async_llm, LOADER)
STOCK_EXPAND = rejection_sampler.expand_batch_to_tokens
SNAPSHOT = {key: float(index + 1) for index, key in enumerate(layout(DEPTH))}
NAMES = {"model_name": "m", "engine": "0"}


@pytest.fixture
def engine_args(engine_args: Launch) -> Launch:
    """Those of a server, and with it the fixture ``launch``."""
    return functools.partial(engine_args, **{"server": True})


@pytest.fixture(autouse=True)
def host_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """vLLM's loader and registry without anything of ours, before and after."""
    original = getattr(STOCK_LOADER, "__wrapped__", STOCK_LOADER)
    monkeypatch.setattr(async_llm, LOADER, original)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    # So that what the code sets is undone after the test.
    monkeypatch.setenv(metrics_hook._VARIABLE, "")
    monkeypatch.delenv(metrics_hook._VARIABLE)
    unregister_vllm_metrics()
    yield
    unregister_vllm_metrics()
    metrics_hook.disconnect()


def loader() -> Any:
    return getattr(async_llm, LOADER)


def samples(text: str, prefix: str = PREFIX + "diffspec") -> dict[tuple[str, str], float]:
    """(name, value of our own label) → value, of all samples of ours in an exposition."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(prefix) and not sample.name.endswith("_created"):
                labels = dict(sample.labels)
                assert set(labels) >= {"model_name", "engine"}
                labels.pop("model_name")
                assert labels.pop("engine") == "0"
                assert len(labels) <= 1
                key = (sample.name, next(iter(labels.values()), ""))
                assert key not in found
                found[key] = sample.value
    return found


def expected(numbers: dict[str, float]) -> dict[tuple[str, str], float]:
    return {
        (PREFIX + metric.name, value): numbers[key]
        for metric in METRICS
        for key, value in metric.cells(DEPTH).items()
    }


# -- which launches report --


def test_a_launch_without_diffspec_leaves_the_loader_alone(launch: Launch) -> None:
    before = loader()
    for spec in (None, {"draft_context_policy": "full"}):
        config = launch(spec)
        assert loader() is before
        assert not hasattr(config.speculative_config, "diffspec_metrics")


def test_registering_alone_imports_no_engine() -> None:
    code = (
        "import sys; from diffspec.plugin import register; register()\n"
        "assert 'diffspec.hosts.vllm.routing' in sys.modules\n"
        "bad = [m for m in sys.modules if m.startswith('vllm.v1.engine.async') or m in "
        "('diffspec.hosts.vllm.stat_logger', 'vllm.v1.metrics.loggers')]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_diffspec_launch_adds_one_logger_however_often_it_is_made(
    engine_args: Launch,
) -> None:
    args = engine_args(ON)
    first, second = args.create_engine_config(), args.create_engine_config()
    assert loader()() == [DiffSpecStatLogger]
    old, new = channel_of(first.speculative_config), channel_of(second.speculative_config)
    assert old is not None
    assert new is not None
    assert not Path(old).exists()
    assert Path(new).exists()
    assert not hasattr(loader().__wrapped__, "__wrapped__")


def test_other_loggers_stay_in_front(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_llm, LOADER, lambda: [LoggingStatLogger])
    launch(ON)
    assert loader()() == [LoggingStatLogger, DiffSpecStatLogger]


def test_a_later_launch_without_diffspec_gets_no_logger_of_ours(launch: Launch) -> None:
    path = channel_of(launch(ON).speculative_config)
    launch()
    assert loader()() == []
    assert path is not None
    assert not Path(path).exists()


def test_an_offline_engine_gets_no_channel_that_nobody_reads(launch: Launch) -> None:
    before = loader()
    config = launch(ON, server=False, disable_log_stats=False)
    assert hasattr(config.speculative_config, "diffspec")
    assert channel_of(config.speculative_config) is None
    assert loader() is before


def test_switched_off_statistics_stay_off(launch: Launch) -> None:
    before = loader()
    config = launch(ON, disable_log_stats=True)
    assert channel_of(config.speculative_config) is None
    assert loader() is before
    # Also where an earlier launch of this process had them.
    launch(ON)
    config = launch(ON, disable_log_stats=True)
    assert channel_of(config.speculative_config) is None
    assert loader()() == []


def test_where_no_file_can_be_created_the_launch_goes_on(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_hook, "create_channel", lambda depth: None)
    before = loader()
    assert channel_of(launch(ON).speculative_config) is None
    assert loader() is before


def test_of_several_api_servers_the_first_reads_the_engines_channel(engine_args: Launch) -> None:
    def configured(rank: int) -> str | None:
        args = engine_args(ON)
        args._api_process_count, args._api_process_rank = 2, rank
        return channel_of(args.create_engine_config().speculative_config)

    # The process that starts engine and servers; a server inherits its environment.
    path = configured(-1)
    assert path is not None
    inherited = os.environ[metrics_hook._VARIABLE]
    assert inherited == path
    assert configured(0) == path
    assert loader()() == [DiffSpecStatLogger]
    assert configured(1) is None
    assert loader()() == []


# -- from the channel to the text --


def manager(config: Any, *, defaults: bool = True) -> Any:
    """vLLM's own manager of stat loggers, with what the loader found."""
    return StatLoggerManager(
        vllm_config=config,
        engine_idxs=[0],
        custom_stat_loggers=loader()(),
        enable_default_loggers=defaults,
    )


def test_a_snapshot_becomes_text_beside_vllms_own(launch: Launch) -> None:
    config = launch(ON, served_model_name="m")
    loggers = manager(config)
    kinds = [type(made).__name__ for made in loggers.stat_loggers]
    # Our logger has switched neither of vLLM's own off.
    assert kinds == ["DiffSpecStatLogger", "PerEngineStatLoggerAdapter", "PrometheusStatLogger"]
    loggers.log_engine_initialized()
    text = generate_latest(REGISTRY).decode()
    assert "vllm:num_requests_running" in text
    assert "vllm:spec_decode_num_draft_tokens_total" in text
    before = samples(text)
    assert set(before) == set(expected(SNAPSHOT))
    counters = {PREFIX + metric.name for metric in METRICS if metric.kind == "counter"}
    for (name, _), value in before.items():
        assert value == 0 if name in counters else math.isnan(value)

    writer = ChannelWriter(channel_of(config.speculative_config))
    writer.write(SNAPSHOT)
    loggers.record(scheduler_stats=None, iteration_stats=None)
    text = generate_latest(REGISTRY).decode()
    assert samples(text) == expected(SNAPSHOT)
    assert 'model_name="m"' in text
    for metric in METRICS:
        family = PREFIX + metric.name
        assert f"# HELP {family} {metric.help}" in text
        assert f"# TYPE {family} {metric.kind}" in text
    writer.close()


def test_a_second_engine_in_the_process_starts_afresh(launch: Launch) -> None:
    for number in (1.0, 2.0):
        config = launch(ON)
        loggers = manager(config)
        loggers.log_engine_initialized()
        writer = ChannelWriter(channel_of(config.speculative_config))
        writer.write(SNAPSHOT | {"drafted": number})
        loggers.record(scheduler_stats=None, iteration_stats=None)
        found = samples(generate_latest(REGISTRY).decode())
        assert found[PREFIX + "diffspec_drafted_tokens_total", ""] == number
        writer.close()


def test_counters_never_go_back() -> None:
    registry = CollectorRegistry()
    collectors = Collectors(DEPTH, NAMES, registry)

    def shown(**changes: float) -> float:
        collectors.update(SNAPSHOT | changes)
        found = samples(generate_latest(registry).decode())
        return found[PREFIX + "diffspec_drafted_tokens_total", ""]

    assert shown(drafted=10) == 10
    assert shown(drafted=10) == 10
    assert shown(drafted=math.nan) == 10
    assert shown(drafted=12) == 12
    # The worker began anew, and had drafted 5 since.
    assert shown(drafted=5) == 17
    assert shown(drafted=0) == 17
    assert shown(drafted=1) == 18


def test_gauges_show_the_newest_value_even_an_unknown_one() -> None:
    registry = CollectorRegistry()
    collectors = Collectors(DEPTH, NAMES, registry)
    collectors.update(SNAPSHOT | {"break_even": 0.5})
    collectors.update(SNAPSHOT | {"break_even": 0.25, "off": 1.0})
    found = samples(generate_latest(registry).decode())
    assert found[PREFIX + "diffspec_break_even", ""] == 0.25
    assert found[PREFIX + "diffspec_off", ""] == 1
    collectors.update(SNAPSHOT | {"break_even": math.nan})
    found = samples(generate_latest(registry).decode())
    assert math.isnan(found[PREFIX + "diffspec_break_even", ""])


MULTIPROCESS = """
import sys
from types import SimpleNamespace as Bag
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from diffspec.hosts.vllm.stat_logger import DiffSpecStatLogger
from diffspec.metrics import layout
from diffspec.telemetry import ChannelWriter, create_channel
config = Bag(num_speculative_tokens=3, diffspec_metrics=create_channel(3))
vllm_config = Bag(speculative_config=config, model_config=Bag(served_model_name="m"))
logger = DiffSpecStatLogger(vllm_config, [0])
logger.log_engine_initialized()
writer = ChannelWriter(config.diffspec_metrics)
for scale in (1, 2):
    writer.write({key: scale * (n + 1.0) for n, key in enumerate(layout(3))})
    logger.record(None, None)
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
sys.stdout.write(generate_latest(registry).decode())
"""


def test_with_a_multiprocess_directory_the_text_is_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MULTIPROCESS],
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    doubled = {key: 2 * value for key, value in SNAPSHOT.items()}
    text = done.stdout[done.stdout.index("# HELP") :]
    assert samples(text) == expected(doubled)
    assert list(tmp_path.glob("counter_*.db"))
    assert list(tmp_path.glob("gauge_mostrecent_*.db"))


def test_a_worker_writes_to_the_channel_of_its_launch(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", STOCK_EXPAND)
    alone = SimpleNamespace(rank_in_group=0, world_size=1)
    monkeypatch.setattr(parallel_state, "_TP", alone)
    config = launch(ON)
    loggers = manager(config)
    loggers.log_engine_initialized()
    # As in a worker process, which gets its configuration pickled.
    vllm_config = pickle.loads(pickle.dumps(config))
    runner = object.__new__(GPUModelRunner)
    runner.max_model_len = 4096
    runner.drafter = object.__new__(EagleProposer)
    runner.drafter.speculative_config = vllm_config.speculative_config
    device = SimpleNamespace(type="cpu")
    worker = SimpleNamespace(model_runner=runner, device=device, vllm_config=vllm_config)
    session: Any = attach(worker, memory=1 << 30)
    session.telemetry.write(SNAPSHOT)
    loggers.record(scheduler_stats=None, iteration_stats=None)
    assert samples(generate_latest(REGISTRY).decode()) == expected(SNAPSHOT)
    session.telemetry.close()


# -- what cannot happen must not hurt --


def bare(channel: str | None) -> Any:
    config = SimpleNamespace(num_speculative_tokens=DEPTH, diffspec_metrics=channel)
    model = SimpleNamespace(served_model_name="m")
    return SimpleNamespace(speculative_config=config, model_config=model)


def test_it_is_a_stat_logger_that_overrides_what_the_base_has() -> None:
    assert issubclass(DiffSpecStatLogger, AggregateStatLoggerBase)
    assert issubclass(DiffSpecStatLogger, StatLoggerBase)
    for name in vars(DiffSpecStatLogger):
        if not name.startswith("_"):
            assert hasattr(AggregateStatLoggerBase, name)
    # A call that vLLM added and we do not know still works.
    DiffSpecStatLogger(bare(None), [0]).record_sleep_state(1, 1)


def test_a_launch_without_a_channel_or_without_speculation_reports_nothing() -> None:
    without = bare(None)
    without.speculative_config = None
    for config in (bare(None), without):
        made = DiffSpecStatLogger(config, [0])
        made.log_engine_initialized()
        made.record(None, None)
        made.log()
    assert samples(generate_latest(REGISTRY).decode()) == {}


def test_an_error_ends_the_metrics_and_not_the_engine(
    launch: Launch, caplog: pytest.LogCaptureFixture
) -> None:
    config = launch(ON)
    made = DiffSpecStatLogger(config, [0])
    made.log_engine_initialized()
    twice = DiffSpecStatLogger(config, [0])
    with caplog.at_level(logging.ERROR, logger="vllm.diffspec"):
        twice.log_engine_initialized()  # the same names again
        writer = ChannelWriter(channel_of(config.speculative_config))
        writer.write(SNAPSHOT)
        for _ in range(3):
            twice.record(None, None)
            twice.log()
        made.record(None, None)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "no metrics from here on" in record.getMessage()
    assert record.exc_info is not None
    assert samples(generate_latest(REGISTRY).decode()) == expected(SNAPSHOT)
    writer.close()


def test_the_log_line_comes_once_a_minute(launch: Launch, log: list[str]) -> None:
    config = launch(ON)
    log.clear()
    now = [0.0]
    made = DiffSpecStatLogger(config, [0], clock=lambda: now[0])
    made.log_engine_initialized()
    writer = ChannelWriter(channel_of(config.speculative_config))
    say: Callable[[], None] = made.log
    for second in range(10, 131, 10):
        now[0] = float(second)
        writer.write(SNAPSHOT | {"depth/3": 10.0 * second, "drafted": 30.0 * second})
        say()
    assert len(log) == 2
    assert all(line.startswith("DiffSpec, last 60 s: ") for line in log)
    writer.close()
