# SPDX-License-Identifier: Apache-2.0
"""Connects a launch to vLLM's metrics: the channel, and our stat logger beside the others.

vLLM has an entry point for stat loggers, but every launch on the machine would load ours, and a
custom stat logger turns statistics on where ``--disable-log-stats`` had turned them off. So the
function that loads them is wrapped where the API process looks it up, once a launch has asked for
DiffSpec, and adds ours for that launch alone.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from diffspec.telemetry import create_channel, remove_channel

_LOADER = "load_stat_logger_plugin_factories"
_MARK = "_diffspec_wrapped"
#: With several API servers vLLM starts the engine from a process of its own, and each server makes
#: its configuration anew: they learn of the engine's channel from the environment.
_VARIABLE = "DIFFSPEC_METRICS_CHANNEL"

# Whether the newest launch that was configured in this process reports metrics.
_wanted = False


def disconnect() -> None:
    """A new launch is being configured: what an earlier one asked for does not count for it."""
    global _wanted
    _wanted = False
    remove_channel()


def connect(engine_args: Any, config: Any, parallel: Any) -> None:
    """Give the launch with this speculative configuration a channel and a stat logger.

    Nothing is created or wrapped where nobody would read it: with ``--disable-log-stats``, and in
    an offline engine, for which vLLM loads no stat loggers.

    Args:
        engine_args: what the launch was asked for with.
        config: the speculative configuration, whose attribute ``diffspec_metrics`` becomes the
            channel's path; without one the attribute is not there.
        parallel: the parallel configuration of the same launch.
    """
    global _wanted
    from vllm.engine.arg_utils import AsyncEngineArgs

    if engine_args.disable_log_stats or not isinstance(engine_args, AsyncEngineArgs):
        return
    if path := _channel(config.num_speculative_tokens, parallel):
        config.diffspec_metrics = path
        _wanted = True
        _wrap_loader()


def channel_of(config: Any) -> str | None:
    """The channel of a launch with this speculative configuration; None if it has none."""
    path = getattr(config, "diffspec_metrics", None)
    return path if isinstance(path, str) else None


def _channel(depth: int, parallel: Any) -> str | None:
    rank, count = parallel._api_process_rank, parallel._api_process_count
    if rank >= 0 and count > 1:
        # The numbers of several servers would be added up, so the first one reports them.
        return os.environ.get(_VARIABLE) if rank == 0 else None
    path = create_channel(depth)
    if rank < 0 and path is not None:
        os.environ[_VARIABLE] = path
    return path


def _wrap_loader() -> None:
    from vllm.v1.engine import async_llm

    original = getattr(async_llm, _LOADER)
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def load_stat_logger_plugin_factories(*args: Any, **kwargs: Any) -> Any:
        factories = original(*args, **kwargs)
        if not _wanted:
            return factories
        from diffspec.hosts.vllm.stat_logger import DiffSpecStatLogger

        return [*factories, DiffSpecStatLogger]

    setattr(load_stat_logger_plugin_factories, _MARK, True)
    setattr(async_llm, _LOADER, load_stat_logger_plugin_factories)
