# SPDX-License-Identifier: Apache-2.0
"""DiffSpec's numbers in vLLM's ``/metrics``, and a log line a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from diffspec.hosts.vllm.metrics_hook import channel_of
from diffspec.hosts.vllm.minute_line import MinuteLine
from diffspec.metrics import METRICS, PREFIX, increase
from diffspec.telemetry import ChannelReader

logger = logging.getLogger("vllm.diffspec")


class Collectors:
    """One Prometheus collector per metric, with a child for every value its label can have.

    Plain counters and gauges, set from outside: a collector that reads the channel by itself would
    not be seen where ``PROMETHEUS_MULTIPROC_DIR`` is set.

    Args:
        depth: K.
        labels: names and values of the labels that all of vLLM's metrics have.

    Raises:
        ValueError: the registry has collectors of these names already.
    """

    def __init__(
        self, depth: int, labels: Mapping[str, str], registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._seen: dict[str, float] = {}
        for metric in METRICS:
            names = [*labels, metric.label] if metric.label else [*labels]
            counter, gauge = None, None
            if metric.kind == "counter":
                counter = Counter(PREFIX + metric.name, metric.help, names, registry=registry)
            else:
                gauge = Gauge(
                    PREFIX + metric.name,
                    metric.help,
                    names,
                    registry=registry,
                    multiprocess_mode="mostrecent",
                )
            for key, value in metric.cells(depth).items():
                values = [*labels.values(), value] if metric.label else [*labels.values()]
                if counter is not None:
                    self._counters[key] = counter.labels(*values)
                    self._seen[key] = 0.0
                if gauge is not None:
                    self._gauges[key] = gauge.labels(*values)
                    self._gauges[key].set(float("nan"))

    def update(self, snapshot: Mapping[str, float]) -> None:
        """Bring the collectors up to a snapshot of the channel."""
        for key, counter in self._counters.items():
            now = snapshot[key]
            if by := increase(self._seen[key], now):
                counter.inc(by)
            if by or now < self._seen[key]:
                self._seen[key] = now
        for key, gauge in self._gauges.items():
            gauge.set(snapshot[key])


class DiffSpecStatLogger(AggregateStatLoggerBase):  # type: ignore[misc]
    """Reads the worker's channel whenever vLLM records statistics. Never raises while serving:
    an exception in a stat logger would end the whole engine.

    Args:
        vllm_config: of a DiffSpec launch; of any other nothing is reported.
        engine_indexes: the engines of this process; there is one, as data parallelism is refused.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        vllm_config: Any,
        engine_indexes: list[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = vllm_config.speculative_config
        self._reader = ChannelReader(channel_of(config))
        self._depth = 0 if config is None else int(config.num_speculative_tokens)
        self._labels = {
            "model_name": str(vllm_config.model_config.served_model_name),
            "engine": str(engine_indexes[0]),
        }
        self._clock = clock
        self._line = MinuteLine(clock())
        self._collectors: Collectors | None = None

    def log_engine_initialized(self) -> None:
        """Create the collectors: vLLM's own logger has now removed all that begin with vllm:."""
        if self._reader.open:
            self._guarded(self._create)

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """After every step: take over what the worker has published."""
        self._guarded(self._update)

    def log(self) -> None:
        """At vLLM's interval; says something at most once a minute, and only of steps."""
        self._guarded(self._say)

    def _create(self) -> None:
        self._collectors = Collectors(self._depth, self._labels)

    def _update(self) -> None:
        if self._collectors is not None and (snapshot := self._reader.read()) is not None:
            self._collectors.update(snapshot)

    def _say(self) -> None:
        if (snapshot := self._reader.read()) is None:
            return
        if (line := self._line.due(snapshot, self._clock())) is not None:
            logger.info(line)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:
            logger.exception("DiffSpec: no metrics from here on")
            self._reader.close()
            self._collectors = None
