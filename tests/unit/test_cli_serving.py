# SPDX-License-Identifier: Apache-2.0
"""Process handling: what is reported of a server that fails, and that nothing of it is left."""

from __future__ import annotations

import fcntl
import json
import sys
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from diffspec.cli.client import Client, RequestError
from diffspec.cli.serving import (
    HOST,
    Server,
    ServerError,
    free_port,
    run_server,
    serve_command,
    serve_environment,
)

Launched = AbstractContextManager[Server]

# Answers every GET, dies of /metrics; its child holds a lock on argv[2] and ignores SIGTERM.
SERVER = """
import fcntl, http.server, os, signal, sys
lock = open(sys.argv[2], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    while True:
        signal.pause()
signal.signal(signal.SIGTERM, signal.SIG_DFL)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/metrics":
            print("the engine is gone", file=sys.stderr, flush=True)
            os._exit(7)
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def start(tmp_path: Path, *command: str, port: int = 0, deadline_s: float = 60.0) -> Launched:
    return run_server(
        command,
        port=port or free_port(),
        name="model",
        log=tmp_path / "logs" / "server.log",
        deadline_s=deadline_s,
    )


def start_server(tmp_path: Path) -> Launched:
    port = free_port()
    command = (sys.executable, "-c", SERVER, str(port), str(tmp_path / "lock"))
    return start(tmp_path, *command, port=port)


def wait_for_lock(path: Path) -> None:
    """Return when no process holds the lock any more (the kill is not waited for by anyone)."""
    with path.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_a_server_that_dies_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    script = "print('\\n'.join(f'line {i}' for i in range(99))); raise SystemExit('no such model')"
    with (
        pytest.raises(ServerError) as caught,
        start(tmp_path, sys.executable, "-uc", script),
    ):
        pytest.fail("served")
    message = str(caught.value)
    assert "exit code 1" in message
    assert message.endswith("line 98\nno such model")
    assert "line 79\n" not in message


def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    missing = str(tmp_path / "no-such-command")
    with (
        pytest.raises(ServerError, match=r"cannot start .*no-such-command"),
        start(tmp_path, missing),
    ):
        pytest.fail("started")


def test_a_missed_deadline_is_reported(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo still loading; exec sleep 1000")
    with (
        pytest.raises(ServerError, match=r"not healthy after 1 s(.|\n)*still loading"),
        start(tmp_path, *command, deadline_s=1.0),
    ):
        pytest.fail("served")


@pytest.mark.timeout(60)
def test_the_whole_group_is_ended_with_the_block(tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
        with (tmp_path / "lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    wait_for_lock(tmp_path / "lock")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health", trust_env=False)


@pytest.mark.timeout(60)
def test_the_group_is_ended_when_the_block_raises(tmp_path: Path) -> None:
    def interrupted() -> None:
        with start_server(tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    wait_for_lock(tmp_path / "lock")


@pytest.mark.timeout(60)
def test_a_death_while_serving_is_reported_with_the_end_of_the_log(tmp_path: Path) -> None:
    with (
        start_server(tmp_path) as server,
        Client(server) as client,
        pytest.raises(RequestError, match=r"no answer(.|\n)*the engine is gone"),
    ):
        client.spec_counters()
    wait_for_lock(tmp_path / "lock")


def test_the_command_serves_on_the_loopback_interface_alone() -> None:
    spec = {"method": "eagle3", "model": "a draft", "num_speculative_tokens": 3}
    command = serve_command("a/target", port=1234, name="m", args=["--x", "1"], speculative=spec)
    after = dict(pairwise(command))
    assert after["--host"] == HOST == "127.0.0.1"
    assert (after["--port"], after["--served-model-name"], after["--x"]) == ("1234", "m", "1")
    assert json.loads(after["--speculative-config"]) == spec
    assert "a/target" in command
    assert "--speculative-config" not in serve_command("a/target", port=1, name="m")


def test_the_environment_is_offline_and_the_callers_values_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "5")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    env = serve_environment({"VLLM_NO_USAGE_STATS": "x"})
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "5"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["VLLM_NO_USAGE_STATS"] == "x"


@pytest.mark.parametrize(
    ("cores", "given", "bind", "threads"),
    [(2, None, "nobind", "1"), (2, "0-1", "0-1", None), (8, None, None, None)],
)
def test_two_cores_are_not_pinned(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    given: str | None,
    bind: str | None,
    threads: str | None,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    if given is not None:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", given)
    env = serve_environment()
    assert env.get("VLLM_CPU_OMP_THREADS_BIND") == bind
    assert env.get("OMP_NUM_THREADS") == threads


def test_openmp_is_preloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert serve_environment()["LD_PRELOAD"] == str(library)
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/other.so")
    assert serve_environment()["LD_PRELOAD"] == f"{library}:/usr/lib/other.so"
    monkeypatch.setenv("LD_PRELOAD", "/opt/libiomp5.so")
    assert serve_environment()["LD_PRELOAD"] == "/opt/libiomp5.so"
