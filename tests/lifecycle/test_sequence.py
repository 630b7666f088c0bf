# SPDX-License-Identifier: Apache-2.0
"""The operator's way through the Manager, step by step, and what each launch would get."""

from __future__ import annotations

import json
import os
import socket
from importlib.metadata import version
from pathlib import Path

import pytest

from diffspec.environment import EXTENSION_ID
from tests.lifecycle.manager import SPECULATIVE, Manager

pytestmark = pytest.mark.e2e

COMMAND = ("vllm", "serve", "/model", "--tensor-parallel-size", "4")
#: Sorted keys, no blanks, written out by hand.
OPTION = (
    '{"diffspec_token_budget":2048,"draft_context_policy":"diffspec","method":"eagle3",'
    '"model":"/models/draft","num_speculative_tokens":3}'
)
ENABLED = {"VLLMHUST_EXT_ENABLED_BUNDLES": EXTENSION_ID, "VLLM_PLUGINS": "ascend,diffspec"}
NOTHING_ENABLED = {"VLLMHUST_EXT_ENABLED_BUNDLES": ""}


def launch(command: tuple[str, ...], environment: dict[str, str]) -> dict[str, object]:
    return {
        "command": list(command),
        "environment": environment,
        "native_extension_manifests": {},
    }


def states(manager: Manager) -> list[str]:
    found: list[str] = manager.json("extension", "check", EXTENSION_ID)["states"]
    return found


def test_from_installed_to_forgotten(manager: Manager) -> None:
    line = f"{EXTENSION_ID} {version('vllm-diffspec')}"
    assert manager.ok("extension", "list").splitlines() == [f"{line} disabled"]
    bundle = manager.json("extension", "validate", EXTENSION_ID)
    assert bundle == manager.json("extension", "inspect", EXTENSION_ID)
    assert bundle["bundle_version"] == bundle["distribution_version"] == version("vllm-diffspec")
    assert bundle["activation"]["entry_points"] == [
        {"group": "vllm.general_plugins", "name": "diffspec"}
    ]
    assert (bundle["host"]["name"], bundle["host"]["provider"]) == ("vllm-ascend", "vllm")
    assert states(manager) == ["installed", "discovered", "compatible", "configured"]

    file = manager.home / "diffspec.json"
    file.write_text(json.dumps({"launch_options": {"speculative_config": SPECULATIVE}}))
    configure = ("extension", "configure", EXTENSION_ID, "--file", str(file))
    assert manager.ok(*configure) == f"configured {EXTENSION_ID}"
    assert manager.dry_run(*COMMAND) == launch(COMMAND, NOTHING_ENABLED)

    assert manager.ok("extension", "enable", EXTENSION_ID) == f"enabled {EXTENSION_ID}"
    assert manager.ok("extension", "list").splitlines() == [f"{line} enabled"]
    assert states(manager) == ["installed", "discovered", "compatible", "configured", "enabled"]
    with_option = (*COMMAND, "--speculative-config", OPTION)
    assert manager.dry_run(*COMMAND) == launch(with_option, ENABLED)
    assert manager.json("extension", "env") == ENABLED

    assert manager.ok("extension", "disable", EXTENSION_ID) == f"disabled {EXTENSION_ID}"
    assert manager.dry_run(*COMMAND) == launch(COMMAND, NOTHING_ENABLED)

    assert manager.ok("extension", "enable", EXTENSION_ID) == f"enabled {EXTENSION_ID}"
    assert manager.dry_run(*COMMAND) == launch(with_option, ENABLED), "kept while disabled"
    assert "before forgetting" in manager.refused("extension", "forget", EXTENSION_ID)
    manager.ok("extension", "disable", EXTENSION_ID)
    assert manager.ok("extension", "forget", EXTENSION_ID) == f"forgot {EXTENSION_ID}"
    assert "has no stored state" in manager.refused("extension", "forget", EXTENSION_ID)
    assert manager.ok("extension", "list").splitlines() == [f"{line} disabled"]


def test_the_choices_are_kept_in_one_private_file(manager: Manager) -> None:
    manager.configured()
    stored = json.loads(manager.state.read_text())
    assert stored["schema_version"] == 2
    assert stored["extensions"] == {
        EXTENSION_ID: {
            "enabled": True,
            "configuration": {"launch_options": {"speculative_config": SPECULATIVE}},
        }
    }
    assert manager.state.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("exported", "seen"),
    [
        ("ascend,diffspec", "ascend,diffspec"),
        ("mine", "mine,ascend,diffspec"),
        ("ascend_model,diffspec", "ascend_model,diffspec,ascend"),
    ],
)
def test_plugins_named_by_the_operator_are_kept(manager: Manager, exported: str, seen: str) -> None:
    shell = manager.configured().exporting(VLLM_PLUGINS=exported)
    assert shell.dry_run(*COMMAND)["environment"] == ENABLED | {"VLLM_PLUGINS": seen}
    shell.ok("extension", "disable", EXTENSION_ID)
    assert shell.dry_run(*COMMAND)["environment"] == NOTHING_ENABLED


def test_an_inherited_gate_is_overwritten(manager: Manager) -> None:
    """A server launched from inside a managed process obeys its own Manager."""
    shell = manager.exporting(VLLMHUST_EXT_ENABLED_BUNDLES=EXTENSION_ID)
    assert shell.dry_run(*COMMAND)["environment"] == NOTHING_ENABLED


def test_configured_as_an_object_of_its_own_for_each_call(manager: Manager) -> None:
    """A new file replaces the old one whole."""
    manager.configured()
    manager.configured({"launch_options": {"speculative_config": {"method": "ngram"}}})
    assert manager.dry_run("vllm")["command"] == [
        "vllm",
        "--speculative-config",
        '{"method":"ngram"}',
    ]


def test_installed_and_enabled_is_not_yet_effective(manager: Manager) -> None:
    """Only a report of the host about a process that lives now is; stock hosts send none."""
    manager.configured()
    assert "runtime_effective" not in states(manager)
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    event = {
        "schema": "vllm-hust-plugin-evidence/0.1",
        "binding_status": "bound",
        "plan_id": "plan",
        "launch_id": "launch",
        "event": "effective",
        "event_id": "e-effective",
        "observation_kind": "runtime_effective",
        "entry_point": {"group": "vllm.general_plugins", "name": "diffspec"},
        "process": {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "start_identity": f"pid:{os.getpid()}:start_ticks:{ticks}",
        },
    }
    log = manager.state.with_name("runtime-evidence.jsonl")
    log.write_text(json.dumps({**event, "event": "loaded"}) + "\n")
    assert "runtime_effective" not in states(manager)
    log.write_text(json.dumps(event) + "\n")
    assert "runtime_effective" in states(manager)
    event["process"] = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start_identity": f"pid:{os.getpid()}:start_ticks:{int(ticks) - 1}",
    }
    log.write_text(json.dumps(event) + "\n")
    assert "runtime_effective" not in states(manager), "another process had that number"
    manager.ok("extension", "disable", EXTENSION_ID)
    manager.ok("extension", "forget", EXTENSION_ID)
    assert log.exists(), "forgotten are the choices, not what ran"
