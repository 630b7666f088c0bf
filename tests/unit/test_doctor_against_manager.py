# SPDX-License-Identifier: Apache-2.0
"""What the doctor says the Manager will do, against the stand-in's command doing it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diffspec.doctor.command import unwrap
from diffspec.doctor.diagnose import Question, diagnose
from diffspec.doctor.findings import Finding
from diffspec.doctor.manager_state import Launch, read_state
from diffspec.doctor.surroundings import Surroundings
from diffspec.environment import EXTENSION_ID

from .doctor_models import DRAFT, LLAMA, write_draft, write_model

STANDIN = Path(__file__).parents[1] / "manager_standin"
SERVER = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model"]
Manager = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    dropped = ("VLLM", "DIFFSPEC", "HUST")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    tool = tmp_path / "bin" / "vllm-hust-ext"
    tool.parent.mkdir()
    start = "import sys\nfrom diffspec_manager_standin.cli import main\nsys.exit(main())\n"
    tool.write_text(f"#!{sys.executable}\n{start}")
    tool.chmod(0o755)
    return {
        **kept,
        "PATH": f"{tool.parent}{os.pathsep}{kept.get('PATH', '')}",
        "PYTHONPATH": str(STANDIN),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@pytest.fixture
def manager(environ: dict[str, str], tmp_path: Path) -> Manager:
    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        tool = [str(tmp_path / "bin" / "vllm-hust-ext"), *words]
        env = environ | variables
        return subprocess.run(tool, env=env, capture_output=True, text=True, check=False)

    return run


def wrong(found: list[Finding]) -> list[Finding]:
    return [f for f in found if f.level != "ok"]


def test_from_configure_to_a_dry_run(
    manager: Manager, environ: dict[str, str], tmp_path: Path
) -> None:
    target = str(write_model(tmp_path / "t", LLAMA))
    spec = {
        "method": "eagle3",
        "model": str(write_draft(tmp_path / "d", DRAFT)),
        "num_speculative_tokens": 3,
        "draft_context_policy": "diffspec",
    }
    file = tmp_path / "diffspec.json"
    file.write_text(
        json.dumps({"launch_options": {"speculative_config": spec}, "host_version": "0.28.0rc1"})
    )
    around = Surroundings(environ)

    def ask(*words: str) -> list[Finding]:
        line = ["vllm-hust-ext", "run", "--", *SERVER, target, *words]
        return list(diagnose(Question(command=line, platform="cpu"), around).findings)

    done = manager("extension", "configure", EXTENSION_ID, "--file", str(file))
    assert done.returncode == 0, done.stderr
    assert [f.id for f in wrong(ask())] == [
        "manager.gate",
        "command.manager",
        "command.speculative_config",
    ]
    assert manager("extension", "enable", EXTENSION_ID).returncode == 0
    state = read_state(environ)
    assert (state.problem, state.enabled()) == (None, [EXTENSION_ID])
    assert state.speculative_config(EXTENSION_ID) == spec
    assert wrong(ask()) == []

    equal = json.dumps(dict(reversed(spec.items())), indent=1)
    lines: list[list[str]] = [
        [],
        ["--speculative-config", equal],
        [f"--speculative-config={equal}"],
        ["-sc", equal],
        ["--speculative-config", "{}"],
        ["--speculative-config", "{'a': 1}"],
        ["--speculative-config"],
    ]
    for words in lines:
        told = [f for f in ask(*words) if f.id == "command.manager"]
        dry = manager("run", "--dry-run", "--", *SERVER, target, *words)
        assert [f.level for f in told] == ["ok" if dry.returncode == 0 else "error"], words
        if dry.returncode == 0:
            added = json.loads(dry.stdout)["command"][len([*SERVER, target, *words]) :]
            assert " ".join(added) in told[0].what
            assert bool(added) == ("adds" in told[0].what)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_environment_of_a_launch(
    manager: Manager, environ: dict[str, str], tmp_path: Path, enabled: bool
) -> None:
    file = tmp_path / "diffspec.json"
    file.write_text('{"host_version": "0.28.0rc1"}')
    assert manager("extension", "configure", EXTENSION_ID, "--file", str(file)).returncode == 0
    if enabled:
        assert manager("extension", "enable", EXTENSION_ID).returncode == 0
    for given in ({}, {"VLLM_PLUGINS": "mine,ascend"}, {"VLLMHUST_EXT_ENABLED_BUNDLES": "x"}):
        dry = manager("run", "--dry-run", "--", "vllm", **given)
        assert dry.returncode == 0, dry.stderr
        before = environ | given
        told = Launch("vllm-hust-ext").environment(before, read_state(environ))
        assert told == before | json.loads(dry.stdout)["environment"]


@pytest.mark.parametrize(
    "words",
    [
        ["--shutdown-grace-seconds", "3", "--", "vllm", "serve", "M"],
        ["vllm", "serve", "M", "--port", "1"],
        ["--", "vllm"],
    ],
)
def test_where_the_managers_own_options_end(manager: Manager, words: list[str]) -> None:
    dry = manager("run", "--dry-run", *words)
    assert dry.returncode == 0, dry.stderr
    taken = unwrap(["vllm-hust-ext", "run", "--dry-run", *words])
    assert json.loads(dry.stdout)["command"] == list(taken.words)
