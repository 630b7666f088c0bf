# SPDX-License-Identifier: Apache-2.0
"""Our manifest says what is true, and its schema says no where the extension manager does."""

from __future__ import annotations

import copy
import importlib.metadata
import pkgutil
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from packaging.specifiers import SpecifierSet

import diffspec
from diffspec import schemas
from diffspec.environment import EXTENSION_ID
from diffspec.hosts.touch_points import TOUCH_POINTS

OURS = schemas.manifest()
ABSENT = object()


def problems(document: object) -> list[str]:
    return schemas.problems("manifest-0.2", document)


def changed(path: str, value: object) -> dict[str, Any]:
    """A copy of our manifest with one place, named ``a.0.b``, set to a value or taken out."""
    document = copy.deepcopy(OURS)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    place: Any = document
    for step in way:
        place = place[step]
    if value is ABSENT:
        del place[last]
    elif isinstance(last, int) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return document


# What our manifest says


def test_it_fits_the_schema() -> None:
    assert problems(OURS) == []


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(schemas.load("manifest-0.2"))


def test_it_says_who_we_are() -> None:
    assert OURS["extension_id"] == EXTENSION_ID
    assert OURS["extension_version"] == diffspec.__version__
    assert OURS["extension_version"] == importlib.metadata.version("vllm-diffspec")
    assert OURS["kind"] == "in_process_plugin"
    assert OURS["lifecycle_owner"] == "vllm"
    assert OURS["runtime"]["isolation"] == "trusted_in_process"
    assert OURS["host"]["provider"] == "vllm"
    assert OURS["host"]["name"] == "vllm-ascend"
    assert any("device_access" in part["permissions"] for part in OURS["components"])


def test_nothing_in_it_can_block_a_launch_or_overrule_the_operator() -> None:
    # A range on a surface that vLLM does not version keeps the manager from ever launching;
    # an environment value replaces the operator's own; a profile cannot be satisfied.
    assert "api_range" not in OURS["host"]
    assert {protocol["version_range"] for protocol in OURS["protocols"]} == {None}
    assert OURS["requires_services"] == []
    assert OURS["activation"]["environment"] == {}
    assert OURS["activation"]["additional_config"] == {}
    # These would become options of the launch.
    options = ("preemption-policy", "batch-admission-policy", "worker-class")
    contracts = [contract for part in OURS["components"] for contract in part["contracts"]]
    assert not [c for c in contracts if c.startswith(tuple(f"vllm.{o}." for o in options))]


def test_its_entry_points_and_references_exist() -> None:
    own = {
        (point.group, point.name): point.value
        for point in importlib.metadata.distribution("vllm-diffspec").entry_points
    }
    (carrier,) = OURS["implementation"]
    assert own[carrier["group"], carrier["name"]] == carrier["value"]
    (activated,) = OURS["activation"]["entry_points"]
    assert activated == {"group": carrier["group"], "name": carrier["name"]}
    assert activated["group"] == "vllm.general_plugins"
    for reference in [carrier["value"], *(p["implementation_ref"] for p in OURS["components"])]:
        assert callable(pkgutil.resolve_name(reference)), reference


def test_its_protocols_are_the_parts_of_its_hosts_that_are_changed() -> None:
    names = {protocol["name"] for protocol in OURS["protocols"]} - {"vllm.general_plugins"}

    def under(module: str) -> set[str]:
        return {name for name in names if f"{module}.".startswith(f"{name}.")}

    changed = ("wrapped", "replaced", "overridden", "bound")
    hidden = [p.target for p in TOUCH_POINTS if p.kind in changed and not under(p.module)]
    assert hidden == []
    unused = names - {name for point in TOUCH_POINTS for name in under(point.module)}
    assert unused == set()


# The host's range

LOOKED_AT = ("0.25.1rc1", "0.28.0rc1", "0.28.0rc1+build.7")
NOT_LOOKED_AT = (
    *("0.23.0", "0.24.0rc1", "0.25.0", "0.25.1.dev7", "0.25.1rc0", "0.25.1rc1.dev3", "0.25.1rc2"),
    *("0.25.1rc3", "0.25.1rc4", "0.25.1", "0.25.1+build.7", "0.25.1.post1"),
    *("0.25.2rc1", "0.25.2", "0.25.2.post1", "0.25.3.dev1", "0.25.3rc1", "0.25.3", "0.25.4rc1"),
    *("0.25.4", "0.25.5", "0.25.5.post2", "0.26.0.dev1", "0.26.0rc1", "0.26.0", "0.26.3.post1"),
    *("0.27.0", "0.27.1rc1", "0.27.1.dev3", "0.27.1"),
    *("0.28.0rc0", "0.28.0rc1.post1", "0.28.0rc2.dev4", "0.28.0rc2", "0.28.0", "0.28.1.dev0"),
    *("0.28.1rc1", "0.28.1", "0.29.0rc1", "0.30.0rc1", "0.30.0rc2", "1.0"),
)
#: In range all the same. Bounds are joined by "and", and a bound leaves out one version or a whole
#: release with all its builds: what lies between the two that were looked at has to be named piece
#: by piece. Named is what may well be published; later builds of 0.25.1, earlier ones of 0.28.0 and
#: releases of 0.25 have no last one to name.
OUT_OF_REACH = (
    *("0.25.1rc1.post1", "0.25.1rc2.dev125", "0.25.1rc2.post1", "0.25.1rc5", "0.25.1.post2"),
    *("0.25.1.1", "0.25.6", "0.25.10", "0.28.0.dev5", "0.28.0b1", "0.28.0rc1.dev2"),
)


@pytest.mark.parametrize("version", LOOKED_AT)
def test_hosts_that_were_looked_at_are_in_range(version: str) -> None:
    host = SpecifierSet(OURS["host"]["version_range"])
    assert host.contains(version)
    assert host.contains(version, prereleases=True)


@pytest.mark.parametrize("version", NOT_LOOKED_AT)
def test_other_hosts_are_not(version: str) -> None:
    host = SpecifierSet(OURS["host"]["version_range"])
    assert not host.contains(version)
    assert not host.contains(version, prereleases=True)


@pytest.mark.parametrize("version", OUT_OF_REACH)
def test_builds_that_no_range_can_leave_out_are_known(version: str) -> None:
    assert SpecifierSet(OURS["host"]["version_range"]).contains(version, prereleases=True)


def test_the_range_itself_asks_for_pre_releases() -> None:
    # packaging before 26 admits a pre-release only if a bound is one; then it, too, means what
    # contains(..., prereleases=True) above means.
    assert SpecifierSet(OURS["host"]["version_range"]).prereleases is True


# What the schema refuses

COMPONENT = OURS["components"][0]
MODULE = {"type": "python_module", "module": "a.b", "object": "C", "status": "active"}
SERVICE = {"service_id": "s", "protocol": "p", "version_range": None, "endpoint_config": "e"}
UNKNOWN = "Additional properties are not allowed ('surprise' was unexpected)"
RANGE = "must be a version range as in PEP 440, with at least one bound"
RANGE_OR_NULL = "must be null or a version range as in PEP 440, with at least one bound"
IDENTIFIER = "must be lower-case letters, digits, dots and dashes"
TEXT = "must be a string that is not blank"

REFUSED: list[tuple[str, object, str]] = [
    # unknown keys, object by object
    ("surprise", 1, f"$: {UNKNOWN}"),
    ("host.surprise", 1, f"$.host: {UNKNOWN}"),
    ("runtime.surprise", 1, f"$.runtime: {UNKNOWN}"),
    ("protocols.0.surprise", 1, f"$.protocols[0]: {UNKNOWN}"),
    ("components.0.surprise", 1, f"$.components[0]: {UNKNOWN}"),
    ("activation.surprise", 1, f"$.activation: {UNKNOWN}"),
    ("activation.entry_points.0.surprise", 1, f"$.activation.entry_points[0]: {UNKNOWN}"),
    ("implementation.0", MODULE | {"surprise": 1}, f"$.implementation[0]: {UNKNOWN}"),
    ("requires_services", [SERVICE | {"surprise": 1}], f"$.requires_services[0]: {UNKNOWN}"),
    # what only schema 0.3 has
    ("resource_claims", [], "$.resource_claims = []: needs schema_version 0.3"),
    ("requires_extensions", [], "$.requires_extensions = []: needs schema_version 0.3"),
    # missing keys
    *(
        (key, ABSENT, f"$: '{key}' is a required property")
        for key in OURS
        if key not in ("components", "activation")
    ),
    ("host.name", ABSENT, "$.host: 'name' is a required property"),
    ("host.provider", ABSENT, "$.host: 'provider' is a required property"),
    ("host.version_range", ABSENT, "$.host: 'version_range' is a required property"),
    ("runtime.isolation", ABSENT, "$.runtime: 'isolation' is a required property"),
    ("protocols.0.version_range", ABSENT, "$.protocols[0]: 'version_range' is a required"),
    ("components.0.contracts", ABSENT, "$.components[0]: 'contracts' is a required property"),
    ("components.0.implementation_ref", ABSENT, "$.components[0]: 'implementation_ref' is a"),
    ("activation.entry_points.0.name", ABSENT, "$.activation.entry_points[0]: 'name' is a req"),
    ("requires_services", [{}], "$.requires_services[0]: 'endpoint_config' is a required"),
    # values
    ("schema_version", "0.3", "$.schema_version: '0.2-experimental' was expected"),
    ("extension_id", "Org.vllm", f"$.extension_id = 'Org.vllm': {IDENTIFIER}"),
    ("extension_id", ".vllm", f"$.extension_id = '.vllm': {IDENTIFIER}"),
    ("extension_id", "org_vllm", f"$.extension_id = 'org_vllm': {IDENTIFIER}"),
    ("extension_id", "org.vllm\n", rf"$.extension_id = 'org.vllm\n': {IDENTIFIER}"),
    ("extension_id", "", f"$.extension_id = '': {IDENTIFIER}"),
    ("extension_version", "latest", "$.extension_version = 'latest': must be a version as in PEP"),
    ("extension_version", 0.1, "$.extension_version = 0.1: must be a version as in PEP 440"),
    ("kind", "plugin", "$.kind: 'plugin' is not one of ['in_process_plugin', "),
    ("host", None, "$.host: None is not of type 'object'"),
    ("host.provider", "vLLM", f"$.host.provider = 'vLLM': {IDENTIFIER}"),
    ("host.name", " ", f"$.host.name = ' ': {TEXT}"),
    ("host.version_range", "", f"$.host.version_range = '': {RANGE}"),
    ("host.version_range", None, f"$.host.version_range = None: {RANGE}"),
    ("host.version_range", "0.28.0", f"$.host.version_range = '0.28.0': {RANGE}"),
    ("host.api_range", "any", f"$.host.api_range = 'any': {RANGE_OR_NULL}"),
    ("runtime.type", "jvm", "$.runtime.type: 'jvm' is not one of ['python', "),
    ("runtime.process_scope", "", f"$.runtime.process_scope = '': {TEXT}"),
    ("lifecycle_owner", "operator", "$.lifecycle_owner: 'operator' is not one of ['vllm', "),
    ("protocols", None, "$.protocols: None is not of type 'array'"),
    ("protocols.0", "vllm.x", "$.protocols[0]: 'vllm.x' is not of type 'object'"),
    ("protocols.0.name", "", f"$.protocols[0].name = '': {TEXT}"),
    ("protocols.0.version_range", ">>1", f"$.protocols[0].version_range = '>>1': {RANGE_OR_NULL}"),
    ("requires_services", None, "$.requires_services: None is not of type 'array'"),
    ("requires_services", [SERVICE | {"optional": 1}], "$.requires_services[0].optional: 1 is n"),
    # carriers
    ("implementation", [], "$.implementation: [] should be non-empty"),
    ("implementation.0", {"type": "crd"}, "$.implementation[0] = {'type': 'crd'}: says nothing"),
    ("implementation.0.type", "wasm", "$.implementation[0].type: 'wasm' is not one of ["),
    ("implementation.0.status", ["active"], "$.implementation[0].status: ['active'] is not of"),
    ("implementation.0", MODULE | {"module": "a-b"}, "$.implementation[0].module = 'a-b': must "),
    ("implementation.0", MODULE | {"object": "A.b"}, "$.implementation[0].object = 'A.b': must "),
    ("implementation.0", MODULE | {"status": "on"}, "$.implementation[0].status: 'on' is not one"),
    ("implementation.0", {"type": "python_module"}, "$.implementation[0]: 'module' is a required"),
    # components
    ("components", None, "$.components: None is not of type 'array'"),
    ("components.0.component_id", "Tap", f"$.components[0].component_id = 'Tap': {IDENTIFIER}"),
    ("components.3", COMPONENT, "$.components: component_id 'launch-configuration' is given 2 tim"),
    ("components.0.contracts", [], "$.components[0].contracts: [] should be non-empty"),
    ("components.0.contracts.0", "x.v1", "$.components[0].contracts[0] = 'x.v1': must begin with"),
    ("components.0.contracts", ["vllm.a"] * 2, "$.components[0].contracts: ['vllm.a', 'vllm.a'] "),
    ("components.0.execution_planes.0", "gpu", "$.components[0].execution_planes[0]: 'gpu' is no"),
    ("components.0.isolation", "none", "$.components[0].isolation: 'none' is not one of ["),
    ("components.0.permissions", ["root"], "$.components[0].permissions[0]: 'root' is not one of"),
    ("components.0.implementation_ref", "a.b", "$.components[0].implementation_ref = 'a.b': must"),
    ("components.0.implementation_ref", "a:", "$.components[0].implementation_ref = 'a:': must"),
    # activation
    ("activation", [], "$.activation: [] is not of type 'object', 'null'"),
    ("activation.entry_points", None, "$.activation.entry_points: None is not of type 'array'"),
    ("activation.environment", {"A": 1}, "$.activation.environment.A: 1 is not of type 'string'"),
    ("activation.additional_config", None, "$.activation.additional_config: None is not of type"),
    (
        "activation.additional_config",
        {"_manager_runtime_qualification": "passed"},
        "$.activation.additional_config",
    ),
]


@pytest.mark.parametrize(("path", "value", "start"), REFUSED)
def test_the_schema_refuses(path: str, value: object, start: str) -> None:
    found = problems(changed(path, value))
    assert [line for line in found if line.startswith(start)], found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("components", ABSENT),
        ("components", []),
        ("components.0.permissions", ABSENT),
        ("components.0.permissions", []),
        ("components.0.execution_planes", []),
        ("components.0.implementation_ref", "a.b:C.d"),
        ("activation", ABSENT),
        ("activation", None),
        ("activation", {}),
        ("activation.additional_config", {"_manager_runtime_qualification": {"a": 1}, "b": [2]}),
        ("host.api_range", None),
        ("host.api_range", ">=1,<2"),
        ("host.provider", "sglang"),
        ("runtime.isolation", "a kind of its own"),
        ("protocols", []),
        ("protocols.1", OURS["protocols"][0]),
        ("protocols.0.version_range", "==1.*"),
        ("implementation.1", MODULE),
        ("implementation.1", MODULE | {"status": "import_only"}),
        ("implementation.1", {"type": "oci_image", "digest": "sha256:0", "layers": [1]}),
        ("requires_services", [SERVICE]),
        ("requires_services", [SERVICE | {"optional": True, "version_range": ">=1"}]),
        ("kind", "kv_connector"),
    ],
)
def test_the_schema_accepts(path: str, value: object) -> None:
    assert problems(changed(path, value)) == []


@pytest.mark.parametrize("document", [None, [], "manifest", 1])
def test_the_schema_wants_an_object(document: object) -> None:
    (line,) = problems(document)
    assert line.endswith("is not of type 'object'")
