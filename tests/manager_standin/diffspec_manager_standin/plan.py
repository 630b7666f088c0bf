# SPDX-License-Identifier: Apache-2.0
"""What the enabled extensions add to a vLLM command and to its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from diffspec_manager_standin.discovery import Bundle

_PLUGIN_GROUPS = ("vllm.general_plugins", "vllm.platform_plugins")
_OBJECT_OPTIONS = {
    "speculative_config": "--speculative-config",
    "batch_admission_policy_config": "--batch-admission-policy-config",
}
_FLAGS = {"scheduler_reserve_output_budget": "--scheduler-reserve-output-budget"}
_READ_KEYS = ("launch_options", "environment")


@dataclass(frozen=True)
class Plan:
    """One extension's share. ``user_config`` is what of the configuration nobody reads."""

    extension_id: str
    environment: dict[str, str]
    additional_config: dict[str, Any]
    vllm_json_options: dict[str, dict[str, Any]]
    vllm_flags: list[str]
    vllm_plugins: list[str]
    user_config: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """The object printed by ``plan``."""
        share = asdict(self)
        return {"bundle_id": share.pop("extension_id"), "vllm": share}


def build(bundle: Bundle, configuration: Mapping[str, Any]) -> Plan:
    """Read the saved configuration, which nobody looked at before.

    Raises:
        ValueError: for unknown launch options, undeclared variables or values of another type.
    """
    options = _object(configuration.get("launch_options", {}), "launch_options")
    if unknown := sorted(set(options) - set(_OBJECT_OPTIONS) - set(_FLAGS)):
        raise ValueError(f"unsupported vLLM launch_options: {unknown}")
    overrides = _object(configuration.get("environment", {}), "environment")
    declared = bundle.manifest.environment
    if undeclared := sorted(set(overrides) - set(declared)):
        raise ValueError(f"environment overrides must be declared by the manifest: {undeclared}")
    if not all(isinstance(value, str) for value in overrides.values()):
        raise ValueError("environment overrides must be strings")
    flags = []
    for key, flag in _FLAGS.items():
        if not isinstance(options.get(key, False), bool):
            raise ValueError(f"launch option {key} must be true or false")
        flags += [flag] if options.get(key) else []
    return Plan(
        extension_id=bundle.id,
        environment={**declared, **overrides},
        additional_config=bundle.manifest.additional_config,
        vllm_json_options={
            flag: _object(options[key], f"launch option {key}")
            for key, flag in _OBJECT_OPTIONS.items()
            if key in options
        },
        vllm_flags=flags,
        vllm_plugins=[n for group, n in bundle.manifest.entry_points if group in _PLUGIN_GROUPS],
        user_config={k: v for k, v in configuration.items() if k not in _READ_KEYS},
    )


def refuse_conflicts(plans: Sequence[Plan]) -> None:
    """Two extensions may say the same thing, never different things.

    Raises:
        ValueError: naming both extensions and what they disagree on.
    """
    for first, second in combinations(plans, 2):
        both = f"extensions {first.extension_id!r} and {second.extension_id!r}"
        for name in sorted(set(first.vllm_plugins) & set(second.vllm_plugins)):
            raise ValueError(f"{both} both declare vLLM plugin name {name!r}")
        for part in ("environment", "additional_config", "vllm_json_options"):
            one, other = getattr(first, part), getattr(second, part)
            for key in sorted(set(one) & set(other)):
                if one[key] != other[key]:
                    raise ValueError(f"{both} conflict on vllm.{part}.{key}")


def merge_command(command: Sequence[str], plans: Sequence[Plan]) -> list[str]:
    """The command with the extensions' options at its end, whatever command it is.

    Raises:
        ValueError: if the user's own options say something else.
    """
    merged = list(command)
    additional: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {}
    flags: dict[str, None] = {}
    for plan in plans:
        options.update(plan.vllm_json_options)
        additional.update(plan.additional_config)
        flags.update(dict.fromkeys(plan.vllm_flags))
    for flag, value in options.items():
        found = _find(merged, flag)
        if found is None:
            merged += [flag, _compact(value)]
        elif found[1] != value:
            raise ValueError(f"extension activation conflicts with {flag}")
    if additional:
        _merge_additional(merged, additional)
    merged += [flag for flag in flags if flag not in merged]
    return merged


def environment_delta(
    plans: Sequence[Plan], enabled: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables a launch gets beside the Manager's own environment."""
    delta: dict[str, str] = {}
    for plan in plans:
        delta |= plan.environment
    declared = [name for plan in plans for name in plan.vllm_plugins]
    if declared:
        lists = (environ.get("VLLM_PLUGINS", ""), delta.get("VLLM_PLUGINS", ""))
        before = [name for text in lists for name in text.split(",") if name]
        delta["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*before, "ascend", *declared]))
    # Also with nothing enabled: vLLM loads every installed plugin, and a disabled one has to see
    # that it is not wanted.
    delta["VLLMHUST_EXT_ENABLED_BUNDLES"] = ",".join(enabled)
    return delta


def _find(command: Sequence[str], flag: str) -> tuple[int, Any] | None:
    """Index and value of the first such option; further ones and other spellings go unseen."""
    for index, item in enumerate(command):
        if item == flag:
            if index + 1 == len(command):
                raise ValueError(f"{flag} requires a JSON object")
            return index + 1, json.loads(command[index + 1])
        if item.startswith(f"{flag}="):
            return index, json.loads(item.removeprefix(f"{flag}="))
    return None


def _merge_additional(command: list[str], additional: Mapping[str, Any]) -> None:
    flag = "--additional-config"
    found = _find(command, flag)
    if found is None:
        command += [flag, _compact(additional)]
        return
    index, own = found
    own = _object(own, flag)
    if clash := sorted(k for k in set(own) & set(additional) if own[k] != additional[k]):
        raise ValueError(f"plugin activation conflicts with additional_config keys: {clash}")
    prefix = f"{flag}=" if command[index].startswith(f"{flag}=") else ""
    command[index] = prefix + _compact({**own, **additional})


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object")
    return value
