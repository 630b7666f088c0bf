# SPDX-License-Identifier: Apache-2.0
"""Manifests of schema ``0.2-experimental``: every field checked, unknown ones refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

SCHEMA_VERSION = "0.2-experimental"

_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.-]*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_OBJECT_REF = re.compile(rf"{_DOTTED.pattern}:{_DOTTED.pattern}")
_NEWER = ("requires_extensions", "resource_claims")
_KINDS = (
    "in_process_plugin",
    "scheduler_policy",
    "kv_connector",
    "kv_service_adapter",
    "control_plane_extension",
    "runtime_bridge",
)
_RUNTIMES = ("python", "external_service", "oci", "kubernetes", "composite")
_OWNERS = ("vllm", "host", "external_operator", "kubernetes", "user")
_CARRIERS = (
    "host_builtin",
    "python_entry_point",
    "python_module",
    "external_service",
    "oci_image",
    "helm_values",
    "kubernetes_manifest",
    "crd",
    "controller",
)
_INACTIVE = ("import_only", "legacy_unregistered")
_PLANES = ("api", "scheduler", "worker", "native", "device", "bridge")
_ISOLATIONS = ("trusted_in_process", "process_isolated", "sandboxed_process")
_PERMISSIONS = (
    "device_access",
    "filesystem_read",
    "filesystem_write",
    "ipc",
    "network_egress",
    "shared_memory",
    "subprocess",
)


@dataclass(frozen=True)
class Manifest:
    """A checked manifest. ``document`` is what the file holds; the rest are views into it."""

    document: Mapping[str, Any]

    @property
    def extension_id(self) -> str:
        return str(self.document["extension_id"])

    @property
    def host(self) -> Mapping[str, Any]:
        host: Mapping[str, Any] = self.document["host"]
        return host

    @property
    def activation(self) -> Mapping[str, Any]:
        return self.document.get("activation") or {}

    @property
    def entry_points(self) -> list[tuple[str, str]]:
        """(group, name) pairs that switch the extension on inside the host."""
        return [(item["group"], item["name"]) for item in self.activation.get("entry_points", ())]

    @property
    def environment(self) -> dict[str, str]:
        return dict(self.activation.get("environment", {}))

    @property
    def additional_config(self) -> dict[str, Any]:
        return dict(self.activation.get("additional_config", {}))

    @property
    def descriptor_only(self) -> bool:
        """Whether the package says that nothing in it can run."""
        states = [carrier.get("status") for carrier in self.document["implementation"]]
        return "active" not in states and any(state in _INACTIVE for state in states)


def parse(document: object) -> Manifest:
    """Check a decoded manifest file.

    Raises:
        ValueError: naming the first thing that is wrong.
    """
    top = _object(document, "experimental manifest")
    if newer := [key for key in _NEWER if key in top]:
        raise ValueError(f"{newer[0]} requires schema_version 0.3")
    _closed(
        top,
        "experimental manifest",
        required=(
            "schema_version",
            "extension_id",
            "extension_version",
            "kind",
            "host",
            "runtime",
            "lifecycle_owner",
            "protocols",
            "implementation",
            "requires_services",
        ),
        optional=("components", "activation"),
    )
    _among(top["schema_version"], "schema_version", (SCHEMA_VERSION,))
    _identifier(top["extension_id"], "extension_id")
    Version(_text(top["extension_version"], "extension_version"))
    _among(top["kind"], "kind", _KINDS)
    _among(top["lifecycle_owner"], "lifecycle_owner", _OWNERS)
    host = _closed(top["host"], "host", ("provider", "name", "version_range"), ("api_range",))
    _identifier(host["provider"], "host.provider")
    _text(host["name"], "host.name")
    _range(host["version_range"], "host.version_range")
    _range(host.get("api_range"), "host.api_range", nullable=True)
    runtime = _closed(top["runtime"], "runtime", ("type", "process_scope", "isolation"))
    _among(runtime["type"], "runtime.type", _RUNTIMES)
    _text(runtime["process_scope"], "runtime.process_scope")
    _text(runtime["isolation"], "runtime.isolation")
    for item in _array(top["protocols"], "protocols"):
        protocol = _closed(item, "protocol", ("name", "version_range"))
        _text(protocol["name"], "protocol.name")
        _range(protocol["version_range"], "protocol.version_range", nullable=True)
    for item in _array(top["implementation"], "implementation", least=1):
        _carrier(item)
    for item in _array(top["requires_services"], "requires_services"):
        keys = ("service_id", "protocol", "version_range", "endpoint_config")
        _closed(item, "service", keys, ("optional",))
    _components(_array(top.get("components", []), "components"))
    if top.get("activation") is not None:
        _activation(top["activation"])
    return Manifest(top)


def _carrier(item: object) -> None:
    carrier = _object(item, "implementation")
    kind = _among(carrier.get("type"), "implementation.type", _CARRIERS)
    if len(carrier) < 2:
        raise ValueError("implementation needs an attribute beside its type")
    if kind == "python_module":
        _closed(carrier, "python_module", ("type", "module", "object", "status"))
        _match(_DOTTED, carrier["module"], "python_module.module")
        _among(carrier["status"], "python_module.status", ("active", *_INACTIVE))


def _components(items: list[Any]) -> None:
    seen: set[str] = set()
    for item in items:
        required = (
            "component_id",
            "contracts",
            "execution_planes",
            "isolation",
            "implementation_ref",
        )
        component = _closed(item, "component", required, ("permissions",))
        name = _identifier(component["component_id"], "component_id")
        if name in seen:
            raise ValueError(f"component_id {name!r} is not unique")
        seen.add(name)
        contracts = _array(component["contracts"], "contracts", least=1)
        if not all(isinstance(c, str) and c.startswith("vllm.") for c in contracts):
            raise ValueError("contracts must start with 'vllm.'")
        for plane in _array(component["execution_planes"], "execution_planes"):
            _among(plane, "execution_planes", _PLANES)
        _among(component["isolation"], "component.isolation", _ISOLATIONS)
        _match(_OBJECT_REF, component["implementation_ref"], "implementation_ref")
        for permission in _array(component.get("permissions", []), "permissions"):
            _among(permission, "permissions", _PERMISSIONS)


def _activation(value: object) -> None:
    keys = ("entry_points", "environment", "additional_config")
    activation = _closed(value, "activation", (), keys)
    for item in _array(activation.get("entry_points", []), "activation.entry_points"):
        pair = _closed(item, "activation.entry_points", ("group", "name"))
        _text(pair["group"], "group")
        _text(pair["name"], "name")
    environment = _object(activation.get("environment", {}), "activation.environment")
    for name, text in environment.items():
        if not isinstance(text, str):
            raise ValueError(f"activation.environment {name} must be a string")
    _object(activation.get("additional_config", {}), "activation.additional_config")


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object")
    return value


def _closed(
    value: object, where: str, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    given = _object(value, where)
    unknown = sorted(set(given) - set(required) - set(optional))
    missing = sorted(set(required) - set(given))
    if unknown or missing:
        raise ValueError(f"{where} has unknown={unknown} missing={missing}")
    return given


def _array(value: object, where: str, least: int = 0) -> list[Any]:
    if not isinstance(value, list) or len(value) < least:
        raise ValueError(f"{where} must be {'a non-empty' if least else 'an'} array")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must be a non-blank string")
    return value


def _match(pattern: re.Pattern[str], value: object, where: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{where} is not of the form {pattern.pattern}: {value!r}")
    return value


def _identifier(value: object, where: str) -> str:
    return _match(_IDENTIFIER, value, where)


def _among(value: object, where: str, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{where} must be one of {', '.join(allowed)}; got {value!r}")
    return value


def _range(value: object, where: str, nullable: bool = False) -> None:
    if value is None and nullable:
        return
    SpecifierSet(_text(value, where))
