# SPDX-License-Identifier: Apache-2.0
"""What a launched process gets, and how its end and signals reach the operator."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from diffspec.environment import EXTENSION_ID
from tests.lifecycle.manager import SPECULATIVE, Manager

pytestmark = pytest.mark.e2e

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getsid(0)]))"

# Says that it is ready, and what signal came. Its child holds a lock on argv[1] and stays.
WAIT = """
import fcntl, os, signal, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
def end(number, frame):
    print("got", number, flush=True)
    if sys.argv[2] == "polite":
        sys.exit(0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(1)
    while True:
        signal.pause()
print("ready", flush=True)
while True:
    signal.pause()
"""


def shown(manager: Manager, *arguments: str) -> tuple[list[str], dict[str, str], int]:
    argv, environ, session = manager.json("run", "--", sys.executable, "-c", SHOW, *arguments)
    return argv, environ, session


def test_the_child_gets_the_option_and_the_variables(manager: Manager) -> None:
    argv, environ, session = shown(manager.configured(), "serve")
    assert argv[:2] == ["serve", "--speculative-config"]
    assert json.loads(argv[2]) == SPECULATIVE
    assert environ["VLLM_PLUGINS"] == "ascend,diffspec"
    assert environ["VLLMHUST_EXT_ENABLED_BUNDLES"] == EXTENSION_ID
    assert environ["VLLM_ECPA_EVIDENCE_STRICT"] == "1"
    assert len(environ["VLLM_ECPA_PLAN_ID"]) == 64
    assert Path(environ["VLLM_HUST_EXT_EVIDENCE_PATH"]).parent == manager.state.parent
    assert session != os.getsid(0)


def test_after_disable_the_child_gets_an_empty_gate_alone(manager: Manager) -> None:
    manager.configured()
    manager.ok("extension", "disable", EXTENSION_ID)
    argv, environ, _ = shown(manager, "serve")
    assert argv == ["serve"]
    assert environ["VLLMHUST_EXT_ENABLED_BUNDLES"] == ""
    assert "VLLM_PLUGINS" not in environ
    assert not [name for name in environ if name.startswith("VLLM_ECPA_")]


def test_options_after_the_command_are_the_commands(manager: Manager) -> None:
    assert shown(manager, "--dry-run", "--", "--shutdown-grace-seconds")[0] == [
        "--dry-run",
        "--",
        "--shutdown-grace-seconds",
    ]


def test_observer_variables_must_not_be_exported(manager: Manager) -> None:
    shell = manager.configured().exporting(VLLM_ECPA_LAUNCH_ID="mine")
    shell.dry_run("true")  # which does not see it
    shell.refused("run", "--", "true")


@pytest.mark.parametrize(
    ("script", "code"),
    [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 256 - 9)],
)
def test_the_childs_end_is_the_exit_code(manager: Manager, script: str, code: int) -> None:
    assert manager.run("run", "--", sys.executable, "-c", script)[0] == code


def test_a_command_that_does_not_exist(manager: Manager) -> None:
    assert "no-such-command" in manager.refused("run", "--", "no-such-command")


def wait_for_lock(path: Path) -> None:
    """Returns once nobody holds the lock: every process of the launch is gone."""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_child_and_nothing_of_it_stays(
    manager: Manager, tmp_path: Path, number: signal.Signals
) -> None:
    lock = tmp_path / "lock"
    process = manager.start("run", "--", sys.executable, "-c", WAIT, str(lock), "polite")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == f"got {number.value}\n"
    assert process.wait(timeout=60) == 128 + number  # though the child ended with 0
    wait_for_lock(lock)
    process.communicate()


def test_a_child_that_stays_is_killed_after_the_grace_period(
    manager: Manager, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    command = (sys.executable, "-c", WAIT, str(lock), "stubborn")
    process = manager.start("run", "--shutdown-grace-seconds", "0.5", "--", *command)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.stdout.readline() == f"got {signal.SIGTERM.value}\n"
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    wait_for_lock(lock)
    process.communicate()
