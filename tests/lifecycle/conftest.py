# SPDX-License-Identifier: Apache-2.0
"""One environment for all tests that leave it as it is, and a Manager with a state of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lifecycle.environment import Environment, create
from tests.lifecycle.manager import HOST_VERSION, Manager

REPOSITORY = Path(__file__).parents[2]
STAND_IN = REPOSITORY / "tests" / "manager_standin"


@dataclass(frozen=True)
class Wheels:
    """Built from this checkout. ``manager`` is None where the PATH has a Manager to use."""

    diffspec: Path
    manager: Path | None

    @property
    def all(self) -> list[str]:
        return [str(wheel) for wheel in (self.manager, self.diffspec) if wheel is not None]


@pytest.fixture(scope="session")
def wheels(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    folder = tmp_path_factory.mktemp("wheels")
    stand_in = pytestconfig.getoption("manager") == "standin"
    if not stand_in and shutil.which("vllm-hust-ext") is None:
        pytest.fail("--manager=path, but there is no vllm-hust-ext on the PATH")
    sources = [REPOSITORY, STAND_IN] if stand_in else [REPOSITORY]
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder), *map(str, sources)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (diffspec,) = folder.glob("vllm_diffspec-*.whl")
    return Wheels(diffspec, next(folder.glob("diffspec_manager_standin-*.whl"), None))


@pytest.fixture(scope="session")
def environment(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Manager and DiffSpec installed; tests that uninstall make one of their own."""
    made = create(tmp_path_factory.mktemp("lifecycle") / "venv")
    made.pip("install", "--no-deps", *wheels.all)
    return made


@pytest.fixture
def hostless(environment: Environment, tmp_path: Path) -> Manager:
    """A Manager on a machine without the host distribution."""
    return Manager(environment, tmp_path)


@pytest.fixture
def manager(hostless: Manager) -> Manager:
    """A Manager beside a host version that the manifest takes."""
    return hostless.with_host(HOST_VERSION)
