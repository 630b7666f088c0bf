# SPDX-License-Identifier: Apache-2.0
"""Why the order is disable, forget, uninstall, and how to get out of the other one."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffspec.environment import EXTENSION_ID
from tests.lifecycle.conftest import Wheels
from tests.lifecycle.environment import create
from tests.lifecycle.manager import HOST_VERSION, Manager, write_extension

pytestmark = pytest.mark.e2e

OTHER = "org.example.other"


@pytest.fixture
def own(wheels: Wheels, tmp_path: Path) -> Manager:
    """A Manager in an environment that this test may change, beside one other extension."""
    environment = create(tmp_path / "venv")
    environment.pip("install", "--no-deps", *wheels.all)
    manager = Manager(environment, tmp_path).with_host(HOST_VERSION)
    return manager.beside(write_extension(tmp_path / "other", OTHER))


def test_uninstalled_while_enabled_nothing_launches_until_it_is_back(
    own: Manager, wheels: Wheels
) -> None:
    own.configured()
    own.environment.pip("uninstall", "--yes", "vllm-diffspec")
    message = f"enabled Bundles are not installed: ['{EXTENSION_ID}']"
    for command in (
        ("extension", "disable", EXTENSION_ID),
        ("extension", "forget", EXTENSION_ID),
        ("extension", "check", EXTENSION_ID),
        ("extension", "enable", OTHER),
        ("extension", "disable", OTHER),
        ("extension", "check", OTHER),
        ("extension", "plan", OTHER),
        ("extension", "env"),
        ("run", "--dry-run", "--", "vllm", "serve", "/model"),
    ):
        assert own.refused(*command) == message, command
    # Only looking still works.
    assert own.ok("extension", "list") == f"{OTHER} 1.0 disabled"
    assert own.json("extension", "validate", OTHER)["bundle_id"] == OTHER

    own.environment.pip("install", "--no-deps", str(wheels.diffspec))
    assert own.ok("extension", "disable", EXTENSION_ID) == f"disabled {EXTENSION_ID}"
    assert own.ok("extension", "forget", EXTENSION_ID) == f"forgot {EXTENSION_ID}"
    own.environment.pip("uninstall", "--yes", "vllm-diffspec")
    assert own.dry_run("vllm")["environment"] == {"VLLMHUST_EXT_ENABLED_BUNDLES": ""}
    assert own.ok("extension", "enable", OTHER) == f"enabled {OTHER}"
