# SPDX-License-Identifier: Apache-2.0
"""README's commands as they stand, with a real server, and the launch after `disable`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from diffspec.cli.client import Client, Completion
from diffspec.cli.serving import free_port, run_server, serve_environment
from diffspec.environment import EXTENSION_ID
from diffspec.testbed.recall_prompts import make_recall_prompt
from tests.lifecycle.conftest import REPOSITORY
from tests.lifecycle.environment import Environment, create
from tests.lifecycle.manager import Manager
from tests.lifecycle.readme import Step, steps

pytestmark = pytest.mark.e2e

TOKENS = 32
STAND_IN = "./tests/manager_standin "


@dataclass
class Session:
    """What README's steps did in ``clone``."""

    clone: Path
    outputs: list[tuple[Step, str]] = field(default_factory=list)
    log: str = ""
    answers: list[Completion] = field(default_factory=list)


def options(port: int) -> list[str]:
    """What follows a server's command here: where to listen, and a small engine."""
    where = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"]
    sizes = ["--dtype", "float32", "--max-model-len", "4096", "--max-num-seqs", "2"]
    return [*where, *sizes, "--enforce-eager"]


def clone_of_this_repository(folder: Path) -> Path:
    """What `git clone` would give, with what is not committed yet."""
    left_out = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "diffspec.json")
    return shutil.copytree(REPOSITORY, folder, ignore=left_out)


def server_variables(manager: Manager) -> dict[str, str]:
    return manager.variables(serve_environment({"VLLM_CPU_KVCACHE_SPACE": "1"}))


def ask(client: Client) -> Completion:
    prompt = make_recall_prompt(3000, seed=1)
    answer = client.measure(list(prompt.prompt_ids), TOKENS)
    assert answer.token_ids == list(prompt.continuation_ids)[:TOKENS]
    return answer


def bash(commands: str, cwd: Path, environ: Mapping[str, str]) -> str:
    """Standard output of a block of commands, which all have to succeed."""
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=cwd,
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def session(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Every step of README's section, in order, in an environment without either package."""
    home = tmp_path_factory.mktemp("readme")
    clone = clone_of_this_repository(home / "clone")
    manager = Manager(create(home / "venv"), clone)
    port = free_port()
    result, log = Session(clone), home / "server.log"
    environ = manager.variables()
    with ExitStack() as running:
        client: Client | None = None
        for step in steps(clone / "README.md"):
            if step.commands.startswith("vllm-hust-ext run -- "):
                launch = f"{step.commands} {' '.join(options(port))}"
                server = running.enter_context(
                    run_server(
                        ["bash", "-c", f"cd {clone} && exec {launch}"],
                        port=port,
                        name="model",
                        log=log,
                        env=server_variables(manager),
                    )
                )
                client = running.enter_context(Client(server))
                result.answers.append(ask(client))
                continue
            commands = step.commands
            if pytestconfig.getoption("manager") == "path":
                commands = commands.replace(STAND_IN, "")  # would hide the one on the PATH
            result.outputs.append((step, bash(commands, clone, environ)))
            if "extension disable" in step.commands and client is not None:
                result.answers.append(ask(client))
                result.log = log.read_text()
                running.close()
    return result


def test_readme_says_what_its_commands_print(session: Session) -> None:
    for step, output in session.outputs:
        assert step.differs(output) is None, step.differs(output)
    ran = "\n".join(step.commands for step, _ in session.outputs)
    for verb in ("validate", "configure", "check", "enable", "disable", "forget"):
        assert f"vllm-hust-ext extension {verb} {EXTENSION_ID}" in ran
    assert "pip uninstall" in ran


def test_a_server_launched_by_the_manager_drafts_with_diffspec(session: Session) -> None:
    answer = session.answers[0]
    assert "DiffSpec: budget 2048 tokens in chunks of 64" in session.log
    # The passage lies outside what any window of 2048 tokens at the end would hold.
    assert answer.counters.accepted_share >= 0.95


def test_disabling_leaves_a_running_server_as_it_is(session: Session) -> None:
    assert len(session.answers) == 2
    assert session.answers[1].counters.accepted_share >= 0.95
    assert "ERROR" not in session.log


@pytest.fixture
def disabled(environment: Environment, tmp_path: Path) -> Manager:
    """DiffSpec installed, configured, and enabled no longer."""
    manager = Manager(environment, tmp_path).with_host("0.28.0rc1").configured()
    manager.ok("extension", "disable", EXTENSION_ID)
    return manager


def test_the_next_launch_after_disable_is_the_target_alone(
    disabled: Manager, session: Session, tmp_path: Path
) -> None:
    port = free_port()
    target = str(session.clone / "build" / "pair" / "target")
    command = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", target]
    command += options(port)
    assert disabled.dry_run(*command)["command"] == command
    with (
        run_server(
            ["vllm-hust-ext", "run", "--", *command],
            port=port,
            name="model",
            log=tmp_path / "server.log",
            env=server_variables(disabled),
        ) as server,
        Client(server) as client,
    ):
        answer = ask(client)
        assert server.log.read_text().count("DiffSpec") == 0
    assert answer.counters.drafts == 0


GATE = """
import sys
from vllm.plugins import load_general_plugins
load_general_plugins()
print("diffspec.plugin" in sys.modules, "diffspec.hosts.vllm.routing" in sys.modules)
"""


def test_a_disabled_plugin_is_loaded_by_vllm_and_stays_out(disabled: Manager) -> None:
    """vLLM loads every installed plugin when `VLLM_PLUGINS` is unset."""
    python = str(disabled.environment.bin / "python")
    code, out, err = disabled.run("run", "--", python, "-c", GATE)
    assert code == 0, err
    assert out.splitlines()[-1] == "True False"
