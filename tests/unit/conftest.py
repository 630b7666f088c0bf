# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the unit tests."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from diffspec import plugin
from diffspec.settings import ConfigError
from diffspec.testbed.random_pair import RandomPair

Launch = Callable[..., Any]
ON = {"draft_context_policy": "diffspec"}


def pytest_configure(config: pytest.Config) -> None:
    """Beside other workers (``pytest -n``) more threads than cores only wait for each other."""
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One torch thread: on tensors this small more of them only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def launch_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that asks for nothing, with the plugin registered."""
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "DIFFSPEC_DISABLE", "VLLMHUST_EXT_ENABLED_BUNDLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    plugin.register()


@pytest.fixture
def engine_args(random_pair: RandomPair) -> Launch:
    """Builds EngineArgs for the random pair: ``spec`` goes over a working speculative config, and
    ``server`` asks for those of a server instead of an offline engine."""

    def build(spec: dict[str, Any] | None = None, *, server: bool = False, **flags: Any) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

        base = {"method": "eagle3", "model": str(random_pair.draft), "num_speculative_tokens": 3}
        flags = {"enforce_eager": True, "max_model_len": 4096, "dtype": "float32"} | flags
        return (AsyncEngineArgs if server else EngineArgs)(
            model=str(random_pair.target), speculative_config=base | (spec or {}), **flags
        )

    return build


@pytest.fixture
def launch(engine_args: Launch) -> Launch:
    """Builds the whole VllmConfig, as a server would before it starts anything."""
    return lambda spec=None, **flags: engine_args(spec, **flags).create_engine_config()


@pytest.fixture
def refused(launch: Launch) -> Callable[..., str]:
    """The text a launch is refused with."""

    def text(spec: dict[str, Any] | None = None, **flags: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            launch(ON | (spec or {}), **flags)
        return str(caught.value)

    return text


@pytest.fixture
def altered_draft(random_pair: RandomPair, tmp_path: Path) -> Callable[..., str]:
    """A copy of the random pair's draft with some entries of its config.json changed."""

    def build(**changes: Any) -> str:
        folder = tmp_path / f"draft-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(random_pair.draft, folder)
        config = json.loads((folder / "config.json").read_text())
        config.update(changes)
        kept = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))
        return str(folder)

    return build


@pytest.fixture
def log() -> Iterator[list[str]]:
    """Lines DiffSpec writes to vLLM's log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.diffspec")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
