# SPDX-License-Identifier: Apache-2.0
"""The extension manager: whether it is here, what it has stored, and what it would do to a launch.

Nothing of the Manager is imported or run; what it does is known from its behaviour as a command.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffspec.configuration.document import read
from diffspec.configuration.manager import host_range
from diffspec.doctor import config_file, plugins
from diffspec.doctor.findings import Finding, error, ok, warning
from diffspec.doctor.host import in_range
from diffspec.doctor.surroundings import ASCEND, Surroundings
from diffspec.environment import ENABLED_BUNDLES, EXTENSION_ID, enabled_bundles
from diffspec.settings import ConfigError

COMMAND = "vllm-hust-ext"
BUNDLES = "vllm_hust.extension_bundles"
STATE_VARIABLE = "VLLM_HUST_EXT_CONFIG"
OLD_GATE = "VLLM_HUST_EXT_ENABLED_BUNDLES"
#: `run` sets these itself and refuses to start where one is exported already.
OWN_VARIABLES = (
    "VLLM_ECPA_EVIDENCE_SINK",
    "VLLM_ECPA_EVIDENCE_STRICT",
    "VLLM_ECPA_PLAN_ID",
    "VLLM_ECPA_LAUNCH_ID",
    "VLLM_HUST_EXT_EVIDENCE_PATH",
)
_ENABLE = f"{COMMAND} extension enable {EXTENSION_ID}"


@dataclass(frozen=True)
class State:
    """What the Manager has stored; empty where there is no file or it cannot be read."""

    path: Path
    extensions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str | None = None

    def enabled(self) -> list[str]:
        """Ids of the enabled extensions."""
        return [name for name, entry in self.extensions.items() if entry.get("enabled") is True]

    def configuration(self, name: str) -> dict[str, Any] | None:
        """An extension's stored configuration; None if there is none."""
        stored = self.extensions.get(name, {}).get("configuration")
        return stored if isinstance(stored, dict) else None

    def speculative_config(self, name: str) -> dict[str, Any] | None:
        """The object the Manager would append as ``--speculative-config`` for an extension."""
        options = (self.configuration(name) or {}).get("launch_options")
        value = options.get("speculative_config") if isinstance(options, dict) else None
        return value if isinstance(value, dict) else None


def state_path(environ: Mapping[str, str]) -> Path:
    """Where the Manager keeps its configuration on Linux."""
    if given := environ.get(STATE_VARIABLE):
        return Path(given)
    base = environ.get("XDG_CONFIG_HOME")
    folder = Path(base) if base else Path(environ.get("HOME", "~")) / ".config"
    return folder.expanduser() / COMMAND / "config.json"


def read_state(environ: Mapping[str, str]) -> State:
    """The Manager's stored configuration; never raises."""
    path = state_path(environ)
    if not path.exists():
        return State(path)
    try:
        document = read(path)
    except ConfigError as failure:
        return State(path, problem="; ".join(failure.problems))
    if not isinstance(document, dict):
        return State(path, problem=f"{path}: not a JSON object")
    if document.get("schema_version") == 1:
        names = document.get("enabled")
        ids = [n for n in names if isinstance(n, str)] if isinstance(names, list) else []
        return State(path, {name: {"enabled": True} for name in ids})
    entries = document.get("extensions")
    if document.get("schema_version") != 2 or not isinstance(entries, dict):
        return State(path, problem=f"{path}: not of a schema the Manager reads (2, or 1)")
    return State(path, {k: v for k, v in entries.items() if isinstance(v, dict)})


def check(around: Surroundings, state: State) -> list[Finding]:
    """Presence, stored state, gate, host range, other extensions."""
    environ = around.environ
    where = shutil.which(COMMAND, path=environ.get("PATH"))
    found = _gate(environ)
    if where is None and ENABLED_BUNDLES not in environ and not state.path.exists():
        text = f"{COMMAND} is not on the PATH: launches are direct, which needs nothing more"
        return [ok("manager.command", text), *found]
    if where is None:
        text = f"{COMMAND} is not on the PATH, though {_traces(environ, state)}"
        fix = "install it, or go on with direct launches"
        found.insert(0, warning("manager.command", text, fix))
    else:
        found.insert(0, ok("manager.command", f"{COMMAND} is {where}"))
    return [
        *found,
        *_registered(around),
        *_stored(around, state),
        *_host(around, state),
        *_others(environ, state),
        *_exported(environ),
        *_dropped_plugins(around, state),
    ]


def _traces(environ: Mapping[str, str], state: State) -> str:
    return f"{ENABLED_BUNDLES} is set" if ENABLED_BUNDLES in environ else f"{state.path} exists"


def _gate(environ: Mapping[str, str]) -> list[Finding]:
    value = environ.get(ENABLED_BUNDLES)
    found = []
    if value is not None and EXTENSION_ID not in enabled_bundles(environ):
        found.append(
            error(
                "manager.gate",
                f'{ENABLED_BUNDLES}="{value}": the Manager did not enable {EXTENSION_ID}, so the '
                "plugin stays out and vLLM will not know its keys",
                f"{_ENABLE}; or, outside the Manager, unset {ENABLED_BUNDLES}",
            )
        )
    elif value is not None:
        found.append(ok("manager.gate", f"{ENABLED_BUNDLES} names {EXTENSION_ID}"))
    else:
        text = f"{ENABLED_BUNDLES} is not set: a direct launch, in which the plugin takes part"
        found.append(ok("manager.gate", text))
    if OLD_GATE in environ:
        text = f"{OLD_GATE} is the name of older Managers and has no effect here"
        found.append(warning("manager.old_gate", text, f"unset {OLD_GATE}; use a newer Manager"))
    return found


def _registered(around: Surroundings) -> list[Finding]:
    own = around.distribution("vllm-diffspec")
    entries = [e for e in own.entry_points if e.group == BUNDLES] if own else []
    if any(e.name == EXTENSION_ID for e in entries):
        return [ok("manager.registered", f"registered as {EXTENSION_ID}")]
    text = f"no installed distribution registers {EXTENSION_ID} in {BUNDLES}"
    return [
        warning("manager.registered", text, "reinstall vllm-diffspec, to launch by the Manager")
    ]


def _stored(around: Surroundings, state: State) -> list[Finding]:
    if state.problem is not None:
        return [
            error(
                "manager.state",
                f"{state.problem}; every command of the Manager will fail",
                f"correct or remove {state.path}",
            )
        ]
    found = []
    if lost := [name for name in state.enabled() if name not in _installed(around)]:
        found.append(
            error(
                "manager.lost",
                f"{', '.join(lost)}: enabled but not installed, and until that is put right the "
                "Manager enables, disables and launches nothing at all",
                f"install it again, then disable, forget and uninstall it in that order; or set "
                f'"enabled" to false in {state.path}',
            )
        )
    stored = state.configuration(EXTENSION_ID)
    if EXTENSION_ID not in state.enabled():
        if stored is not None:
            text = f"{EXTENSION_ID} is configured but not enabled"
            found.append(warning("manager.enabled", text, _ENABLE))
        return found
    if not stored:
        text = f"{EXTENSION_ID} is enabled without a configuration: the Manager would add no option"
        fix = f"{COMMAND} extension configure {EXTENSION_ID} --file diffspec.json"
        return [*found, error("manager.configuration", text, fix)]
    found.append(ok("manager.enabled", f"{EXTENSION_ID} is enabled for the Manager's next launch"))
    judged = config_file.judge(stored, f"stored in {state.path}")
    return [*found, *judged]


def _installed(around: Surroundings) -> set[str]:
    entries = (e for d in around.distributions() for e in d.entry_points)
    return {entry.name for entry in entries if entry.group == BUNDLES}


def _host(around: Surroundings, state: State) -> list[Finding]:
    """What the Manager will make of the host: one distribution's version against the manifest."""
    name, versions = host_range()
    version = around.version(name)
    override = (state.configuration(EXTENSION_ID) or {}).get("host_version")
    if isinstance(override, str):
        # Whether it is in range is a finding of the configuration itself.
        real = f"{name} {version}" if version else f"no {name}"
        text = f"host_version = {override} is taken in place of the real host ({real} is installed)"
        return [ok("manager.host", f"{text}; the findings under host are the real ones")]
    if version is None:
        return [
            warning(
                "manager.host",
                f"the Manager looks for {name} alone, which is not installed, so it would refuse "
                "to launch",
                "write host_version into the configuration: `diffspec config init` does",
            )
        ]
    try:
        before, since = in_range(version, versions)
    except ValueError:
        return [error("manager.host", f"{name} {version}: not a version number", "reinstall it")]
    if not since:
        return [
            error(
                "manager.host",
                f"{name} {version} is outside the manifest's {versions}: the Manager refuses to "
                "launch",
                "install a version in that range",
            )
        ]
    if not before:
        return [
            warning(
                "manager.host",
                f"{name} {version} is a pre-release, in the manifest's {versions} only where the "
                "Manager runs with packaging 26 or newer",
                "pip install 'packaging>=26' in the Manager's environment",
            )
        ]
    return [ok("manager.host", f"{name} {version} is in the manifest's {versions}")]


def _others(environ: Mapping[str, str], state: State) -> list[Finding]:
    names = dict.fromkeys([*enabled_bundles(environ), *state.enabled()])
    found = []
    for name in names:
        if name == EXTENSION_ID:
            continue
        theirs = state.speculative_config(name)
        if theirs is not None and EXTENSION_ID in state.enabled():
            found.append(
                error(
                    "manager.other",
                    f"{name} is enabled and has a speculative_config of its own: the Manager "
                    f"refuses to launch both",
                    f"{COMMAND} extension disable {name}",
                )
            )
        elif "vspec" in name or "spec-dec" in name or theirs is not None:
            found.append(
                warning(
                    "manager.other",
                    f"{name} is enabled and concerns speculative decoding too",
                    f"use one of the two: {COMMAND} extension disable {name}",
                )
            )
    return found


def _exported(environ: Mapping[str, str]) -> list[Finding]:
    if ENABLED_BUNDLES in environ:  # inside a launch of the Manager these are its own
        return []
    if given := [name for name in OWN_VARIABLES if name in environ]:
        listed = ", ".join(given)
        text = f"{listed}: exported already, which `{COMMAND} run` refuses (its dry run does not)"
        return [error("manager.exported", text, f"unset {' '.join(given)}")]
    return []


def _dropped_plugins(around: Surroundings, state: State) -> list[Finding]:
    general = plugins.ascend_plugins(around).get(plugins.GROUP, [])
    allowed = around.environ.get(plugins.ALLOW_LIST)
    if not general or allowed is not None or EXTENSION_ID not in state.enabled():
        return []
    complete = ",".join(["ascend", *general, plugins.PLUGIN])
    return [
        warning(
            "manager.plugins",
            f"the Manager will set {plugins.ALLOW_LIST}=ascend,{plugins.PLUGIN}, which keeps "
            f"{', '.join(general)} of {ASCEND} from being loaded",
            f"export {plugins.ALLOW_LIST}={complete} before `{COMMAND} run`",
        )
    ]
