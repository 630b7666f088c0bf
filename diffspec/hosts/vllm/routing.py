# SPDX-License-Identifier: Apache-2.0
"""The way in: DiffSpec's keys of ``--speculative-config`` become a validated, active launch.

One host method is wrapped, ``EngineArgs.create_speculative_config``. It runs in the process that
parses the command line, before anything is loaded, and sees both the user's object and the engine
flags, so that every conflict is reported in one message of ours before vLLM's own checks stop at
the first. vLLM's classes stay as they are and its objects stay stock: the validated settings
travel as one plain attribute of the speculative configuration, the place for metrics as another.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from diffspec.hosts import ascend_lane
from diffspec.hosts.places import path_problem
from diffspec.hosts.surface import HostError, require_surface
from diffspec.hosts.unsupported import refusals
from diffspec.hosts.vllm.facts import PADDED, WORKERS, device_platform, draft_facts, flag_facts
from diffspec.hosts.vllm.metrics_hook import connect, disconnect
from diffspec.hosts.vllm.report import announce, start_up_lines
from diffspec.keys import asks_for_diffspec, normalise
from diffspec.settings import ConfigError, DiffSpecSettings, split_keys

_HOOK = "create_speculative_config"
_MARK = "_diffspec_wrapped"
_V2_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def install() -> None:
    """Wrap the hook; does nothing if it is wrapped already.

    Raises:
        HostError: this vLLM has no such hook. One with another signature is wrapped all the same,
            and a launch that asks for DiffSpec is then refused by the surface check.
    """
    from vllm.engine.arg_utils import EngineArgs

    original = getattr(EngineArgs, _HOOK, None)
    if original is None:
        raise HostError(f"vLLM has no EngineArgs.{_HOOK}")
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        disconnect()
        raw = getattr(self, "speculative_config", None)
        ours, rest = split_keys(raw) if isinstance(raw, Mapping) else ({}, {})
        if not ours:
            return original(self, *args, **kwargs)
        # The host rebinds and extends this attribute; the user's object has to survive, because
        # one EngineArgs may create its engine configuration more than once.
        self.speculative_config = dict(rest)
        try:
            return _create(functools.partial(original, self, *args, **kwargs), self, ours, rest)
        finally:
            self.speculative_config = raw

    setattr(create_speculative_config, _MARK, True)
    setattr(EngineArgs, _HOOK, create_speculative_config)


def trained_window(config: Any) -> int | None:
    """The longest context, in tokens, that the draft of a speculative configuration was made for.

    A ``max_model_len`` the user gave for the draft counts. Otherwise vLLM 0.28 leaves
    ``draft_model_config.max_model_len`` = min(the draft's own, the target's) and raises the
    draft's ``max_position_embeddings`` to the target's length, so whichever of the two was not
    touched holds the draft's own. None if the draft's configuration does not say.
    """
    if config.max_model_len is not None:
        return int(config.max_model_len)
    draft, limit = config.draft_model_config, config.target_model_config.max_model_len
    if draft.max_model_len < limit:
        return int(draft.max_model_len)
    positions = getattr(draft.hf_config, "max_position_embeddings", None)
    return None if positions is None else int(positions)


def _create(build: Any, engine_args: Any, ours: dict[str, Any], rest: dict[str, Any]) -> Any:
    """Validate, let the host build its object, validate against the draft, activate."""
    if not asks_for_diffspec(ours):
        settings = DiffSpecSettings.parse(ours, num_speculative_tokens=_depth(engine_args, rest))
        config = build()
        announce([f"DiffSpec is off: {note}" for note in settings.notes])
        return config

    require_surface(("config",), platform=device_platform())
    problems: list[str] = []
    _parse(ours, problems, num_speculative_tokens=_depth(engine_args, rest))
    problems += _draft_path_problems(engine_args, rest)
    arguments = inspect.signature(build.func).bind(*build.args, **build.keywords).arguments
    target, parallel = arguments["target_model_config"], arguments["target_parallel_config"]
    flags = flag_facts(engine_args, target, parallel, rest)
    problems += refusals(flags)
    if problems:
        raise ConfigError(*problems)

    config = build()
    problems = refusals(draft_facts(config))
    window = trained_window(config)
    settings_or_none = _parse(
        ours,
        problems,
        num_speculative_tokens=config.num_speculative_tokens,
        trained_window=window,
    )
    if problems or settings_or_none is None:
        raise ConfigError(*problems)
    _activate(engine_args, config, parallel, settings_or_none, window, target.max_model_len)
    if line := ascend_lane.warning(replace(flags, depth=config.num_speculative_tokens)):
        announce([line], warn=True)
    if line := ascend_lane.note(flags):
        announce([line], warn=True)
    connect(engine_args, config, parallel)
    return config


def _activate(
    engine_args: Any,
    config: Any,
    parallel: Any,
    settings: DiffSpecSettings,
    window: int | None,
    max_model_len: int,
) -> None:
    platform = device_platform()
    worker_cls = WORKERS[platform]
    changes = {}
    if platform in PADDED:
        # Read after this by the very call that is building the configuration.
        if engine_args.async_scheduling is None:
            engine_args.async_scheduling = False
            changes["async_scheduling = false"] = "drafting needs exact acceptance"
    elif not config.disable_padded_drafter_batch:
        changes["disable_padded_drafter_batch = true"] = (
            "acceptance is then known exactly when drafting; turns asynchronous scheduling off"
        )
        config.disable_padded_drafter_batch = True
    if parallel.worker_cls != worker_cls:
        parallel.worker_cls = worker_cls
        changes[f"worker_cls = {parallel.worker_cls}"] = "attaches to the drafter in the worker"
    if _pin_v1_runner():
        changes[f"{_V2_VARIABLE} = 0 (whole process)"] = "the V2 runner has no such drafter"
    config.diffspec = settings.to_payload()
    announce(
        start_up_lines(
            settings,
            depth=config.num_speculative_tokens,
            trained_window=window,
            max_model_len=max_model_len,
            changes=changes,
            platform=platform,
        )
    )


def _pin_v1_runner() -> bool:
    """Keep the V1 runner where vLLM could choose V2, which it never does without Triton."""
    import vllm.envs as envs
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON or envs.VLLM_USE_V2_MODEL_RUNNER is not None:
        return False
    # Workers inherit the environment; the property that decides is not ours to change.
    os.environ[_V2_VARIABLE] = "0"
    return True


def _parse(
    ours: Mapping[str, Any], problems: list[str], **known: int | None
) -> DiffSpecSettings | None:
    depth = known.pop("num_speculative_tokens")
    try:
        return DiffSpecSettings.parse(ours, num_speculative_tokens=depth, **known)
    except ConfigError as error:
        problems += error.problems
        return None


def _host_key(engine_args: Any, rest: Mapping[str, Any], key: str, flag: str) -> Any:
    for name, value in rest.items():
        if normalise(name) == key:
            return value
    return getattr(engine_args, flag, None)


def _depth(engine_args: Any, rest: Mapping[str, Any]) -> int | None:
    """The number of drafted tokens if it was given as one; vLLM judges anything else."""
    value = _host_key(engine_args, rest, "num_speculative_tokens", "spec_tokens")
    return value if type(value) is int and value > 0 else None


def _draft_path_problems(engine_args: Any, rest: Mapping[str, Any]) -> list[str]:
    """Name a missing draft folder; the host would ask its model hub for a path it cannot parse."""
    model = _host_key(engine_args, rest, "model", "spec_model")
    problem = path_problem(model) if isinstance(model, str) else None
    if problem is None:
        return []
    return [f'model = "{model}": {problem}; give the draft\'s path or hub name']
