# SPDX-License-Identifier: Apache-2.0
"""The entry point: light to import, gated, safe to call twice, silent about broken hosts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from diffspec import plugin
from diffspec.environment import DISABLE, ENABLED_BUNDLES, EXTENSION_ID, wanted


def run_python(code: str, **environ: str) -> None:
    """Run code in a fresh interpreter; its assertions are the test."""
    inherited = {k: v for k, v in os.environ.items() if k not in (DISABLE, ENABLED_BUNDLES)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


HEAVY = "heavy = [m for m in ('torch', 'vllm', 'pydantic', 'numpy') if m in sys.modules]"


def test_importing_the_light_modules_loads_nothing_heavy() -> None:
    run_python(
        "import sys, diffspec, diffspec.settings, diffspec.plugin, diffspec.hosts.surface\n"
        f"{HEAVY}\nassert not heavy, heavy"
    )


@pytest.mark.parametrize(
    "environ",
    [{DISABLE: "1"}, {ENABLED_BUNDLES: ""}, {ENABLED_BUNDLES: "org.vllm-hust.other"}],
)
def test_a_closed_gate_loads_nothing(environ: dict[str, str]) -> None:
    run_python(
        "import sys\nfrom diffspec.plugin import register\nregister()\nregister()\n"
        f"{HEAVY}\nassert not heavy, heavy",
        **environ,
    )


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, True),
        ({DISABLE: "0"}, True),
        ({DISABLE: ""}, True),
        ({DISABLE: "1"}, False),
        ({DISABLE: "True"}, False),
        ({DISABLE: " YES "}, False),
        ({DISABLE: "on"}, False),
        ({ENABLED_BUNDLES: ""}, False),
        ({ENABLED_BUNDLES: ","}, False),
        ({ENABLED_BUNDLES: "a.b,c.d"}, False),
        ({ENABLED_BUNDLES: EXTENSION_ID + "2"}, False),
        ({ENABLED_BUNDLES: EXTENSION_ID}, True),
        ({ENABLED_BUNDLES: f"a.b,{EXTENSION_ID},c.d"}, True),
        ({ENABLED_BUNDLES: f"a.b, {EXTENSION_ID}"}, True),
        ({ENABLED_BUNDLES: EXTENSION_ID, DISABLE: "1"}, False),
    ],
)
def test_the_gate(environ: dict[str, str], expected: bool) -> None:
    assert wanted(environ) is expected


@pytest.fixture
def engine_args(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's EngineArgs, as it was before this test once the test is over."""
    monkeypatch.delenv(DISABLE, raising=False)
    monkeypatch.delenv(ENABLED_BUNDLES, raising=False)
    arg_utils = pytest.importorskip("vllm.engine.arg_utils")
    hook = arg_utils.EngineArgs.create_speculative_config
    monkeypatch.setattr(arg_utils.EngineArgs, "create_speculative_config", hook)
    return arg_utils.EngineArgs


def test_registering_twice_wraps_once(engine_args: Any) -> None:
    plugin.register()
    once = engine_args.create_speculative_config
    plugin.register()
    assert engine_args.create_speculative_config is once
    assert not hasattr(once.__wrapped__, "__wrapped__")


def test_a_host_without_the_hook_gets_one_log_line(
    engine_args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.diffspec")
    logger.addHandler(handler)
    monkeypatch.delattr(engine_args, "create_speculative_config")
    try:
        plugin.register()
    finally:
        logger.removeHandler(handler)
    (record,) = records
    assert "vLLM has no EngineArgs.create_speculative_config" in record.getMessage()
    assert "draft_context_policy" in record.getMessage()
    assert not hasattr(engine_args, "create_speculative_config")
