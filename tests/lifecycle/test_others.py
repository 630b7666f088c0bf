# SPDX-License-Identifier: Apache-2.0
"""Beside other extensions: claims on the same option, and registrations that are broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffspec.environment import EXTENSION_ID
from tests.lifecycle.manager import SPECULATIVE, Manager, write_extension

pytestmark = pytest.mark.e2e

OTHER = "org.example.other"


def enable_other(manager: Manager, speculative: dict[str, object] | None) -> None:
    options = {} if speculative is None else {"speculative_config": speculative}
    file = manager.home / "other.json"
    file.write_text(json.dumps({"launch_options": options}))
    manager.ok("extension", "configure", OTHER, "--file", str(file))
    manager.ok("extension", "enable", OTHER)


def test_another_extension_with_its_own_speculation(manager: Manager, tmp_path: Path) -> None:
    """Both can be enabled; the launch is refused, and names both."""
    both = manager.beside(write_extension(tmp_path / "other", OTHER)).configured()
    enable_other(both, {"method": "ngram", "num_speculative_tokens": 4})
    for command in (("extension", "env"), ("run", "--dry-run", "--", "vllm", "serve", "/model")):
        message = both.refused(*command)
        assert "conflict on vllm." in message
        assert EXTENSION_ID in message
        assert OTHER in message
    both.ok("extension", "disable", OTHER)
    assert both.dry_run("vllm")["environment"]["VLLM_PLUGINS"] == "ascend,diffspec"


def test_an_unrelated_extension_is_launched_along(manager: Manager, tmp_path: Path) -> None:
    both = manager.beside(write_extension(tmp_path / "other", OTHER)).configured()
    enable_other(both, None)
    launch = both.dry_run("vllm", "serve", "/model")
    assert launch["environment"] == {
        "VLLMHUST_EXT_ENABLED_BUNDLES": f"{OTHER},{EXTENSION_ID}",
        "VLLM_PLUGINS": "ascend,other,diffspec",
    }
    assert json.loads(launch["command"][-1]) == SPECULATIVE


def test_a_plugin_of_the_same_name(manager: Manager, tmp_path: Path) -> None:
    other = write_extension(tmp_path / "other", OTHER, plugin="diffspec")
    both = manager.beside(other).configured()
    enable_other(both, None)
    assert "plugin name 'diffspec'" in both.refused("run", "--dry-run", "--", "vllm")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"surprise": 1}, "manifest is invalid: experimental manifest has unknown=['surprise']"),
        ({"resource_claims": []}, "requires schema_version 0.3"),
        ({"extension_id": "org.example.third"}, ""),
        ({"value": "other_manifest:register"}, "must register a static module directory"),
        ({"manifests": ()}, "must contain exactly one Bundle v1 manifest"),
        (
            {
                "manifests": (
                    "vllm-hust-extension-v0.2.json",
                    "vllm-hust-extension-v0.3.json",
                )
            },
            "must contain exactly one Bundle v1 manifest",
        ),
        ({"entry_points": False}, "declares uninstalled activation entry points"),
    ],
)
def test_a_broken_extension_does_not_stop_ours(
    manager: Manager, tmp_path: Path, broken: dict[str, object], message: str
) -> None:
    both = manager.beside(write_extension(tmp_path / "other", OTHER, **broken))  # type: ignore[arg-type]
    code, out, err = both.run("extension", "list")
    assert code == 0
    assert f"{OTHER} invalid" in err
    assert message in err
    assert EXTENSION_ID in out
    assert message in both.refused("extension", "validate", OTHER)
    assert both.json("extension", "validate", EXTENSION_ID)["bundle_id"] == EXTENSION_ID
    (item,) = [b for b in both.json("extension", "list", "--json") if b["bundle_id"] == OTHER]
    assert item["valid"] is False
    assert message in item["discovery_error"]
