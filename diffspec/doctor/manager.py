# SPDX-License-Identifier: Apache-2.0
"""The extension manager: whether it is here, what it has stored, and what it would do to a launch.

Nothing of the Manager is imported or run; what it does is known from its behaviour as a command.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from diffspec import schemas
from diffspec.configuration.document import read
from diffspec.configuration.manager import host_range
from diffspec.doctor import config_file, plugins
from diffspec.doctor.arguments import MANAGER as COMMAND
from diffspec.doctor.findings import Finding, error, ok, warning
from diffspec.doctor.host import in_range
from diffspec.doctor.manager_state import Launch, State, speculative_config
from diffspec.doctor.surroundings import ASCEND, Surroundings
from diffspec.environment import ENABLED_BUNDLES, EXTENSION_ID, enabled_bundles
from diffspec.settings import ConfigError

BUNDLES = "vllm_hust.extension_bundles"
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
_CONFIGURE = f"{COMMAND} extension configure {EXTENSION_ID} --file"
#: Names under which the Manager looks for a manifest.
_MANIFESTS = (
    "vllm-hust-extension-v0.3.json",
    schemas.MANIFEST,
    "vllm-hust-extension-v1.json",
    "extension-bundle-v1.json",
)


def check(around: Surroundings, state: State, launch: Launch) -> list[Finding]:
    """Presence, stored state, gate, host range, other extensions."""
    environ = around.environ
    where = shutil.which(launch.command or COMMAND, path=environ.get("PATH"))
    traces = ENABLED_BUNDLES in environ or state.path.exists()
    if where is None and not launch.managed and not traces:
        text = f"{COMMAND} is not on the PATH: launches are direct, which needs nothing more"
        return [ok("manager.command", text), *_gate(environ, state, launch)]
    found = [
        *_registered(around, launch),
        *_stored(around, state, launch),
        *_host(around, state, launch),
        *_others(environ, state, launch),
        *_exported(environ, launch),
        *_dropped_plugins(around, state, launch),
    ]
    if launch.direct:  # nothing of it stands in the way of this command
        found = [replace(f, level="warning") if f.level == "error" else f for f in found]
    return [_command(where, environ, state, launch), *_gate(environ, state, launch), *found]


def _command(
    where: str | None, environ: Mapping[str, str], state: State, launch: Launch
) -> Finding:
    if where is not None:
        return ok("manager.command", f"{COMMAND} is {where}")
    if launch.command is not None:
        text = f"the command runs {launch.command}, which is not found"
        return error("manager.command", text, "install the Manager, or start vLLM directly")
    if launch.file is not None:
        text = f"{COMMAND} is not on the PATH, and a configuration file is for it alone"
        fix = "install it, or give vLLM the speculative_config as --speculative-config"
        return warning("manager.command", text, fix)
    text = f"{COMMAND} is not on the PATH, though {_traces(environ, state)}"
    return warning("manager.command", text, "install it, or go on with direct launches")


def _traces(environ: Mapping[str, str], state: State) -> str:
    return f"{ENABLED_BUNDLES} is set" if ENABLED_BUNDLES in environ else f"{state.path} exists"


def _gate(environ: Mapping[str, str], state: State, launch: Launch) -> list[Finding]:
    value = environ.get(ENABLED_BUNDLES)
    found = []
    if launch.managed:  # what is set already is overwritten
        if EXTENSION_ID in launch.enabled(state):
            text = f"the Manager will set {ENABLED_BUNDLES} to {','.join(launch.enabled(state))}"
            found.append(ok("manager.gate", text))
        elif state.problem is None:
            text = f"{EXTENSION_ID} is not enabled: the Manager will keep the plugin out"
            found.append(error("manager.gate", text, _ENABLE))
    elif value is not None and EXTENSION_ID not in enabled_bundles(environ):
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


def _registered(around: Surroundings, launch: Launch) -> list[Finding]:
    """Our entry in the Manager's group, and the one manifest behind it as it was installed."""
    level = error if launch.managed else warning
    id, again = "manager.registered", "reinstall vllm-diffspec, to launch by the Manager"
    own = around.distribution("vllm-diffspec")
    entries = [e for e in own.entry_points if e.group == BUNDLES] if own else []
    folders = [e.value.replace(".", "/") for e in entries if e.name == EXTENSION_ID]
    if own is None or not folders:
        text = f"no installed distribution registers {EXTENSION_ID} in {BUNDLES}"
        return [level(id, text, again)]
    files = [f for f in own.files or () if f.name in _MANIFESTS and str(f.parent) in folders]
    if len(files) != 1:
        text = f"{len(files)} manifests of {EXTENSION_ID} are installed, the Manager wants one"
        return [level(id, text, again)]
    try:
        problems = schemas.problems("manifest-0.2", read(Path(str(files[0].locate()))))
    except ConfigError as failure:
        problems = list(failure.problems)
    if problems:
        return [level(id, f"the manifest of {EXTENSION_ID}: {p}", again) for p in problems]
    return [ok(id, f"registered as {EXTENSION_ID}, with a valid manifest")]


def _stored(around: Surroundings, state: State, launch: Launch) -> list[Finding]:
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
        if stored is not None and (launch.file is not None or not launch.managed):
            text = f"{EXTENSION_ID} is configured but not enabled"
            found.append(warning("manager.enabled", text, _ENABLE))
        return found
    if launch.file is not None:
        if launch.document not in (None, stored):
            text = f"{state.path} holds another configuration, with which the Manager would launch"
            found.append(warning("manager.configuration", text, f"{_CONFIGURE} {launch.file}"))
        return found
    if not stored:
        text = f"{EXTENSION_ID} is enabled without a configuration: the Manager would add no option"
        fix = f"{_CONFIGURE} diffspec.json"
        return [*found, error("manager.configuration", text, fix)]
    found.append(ok("manager.enabled", f"{EXTENSION_ID} is enabled for the Manager's next launch"))
    return [*found, *config_file.judge(stored, f"stored in {state.path}", around.environ)]


def _installed(around: Surroundings) -> set[str]:
    entries = (e for d in around.distributions() for e in d.entry_points)
    return {entry.name for entry in entries if entry.group == BUNDLES}


def _host(around: Surroundings, state: State, launch: Launch) -> list[Finding]:
    """What the Manager will make of the host: one distribution's version against the manifest."""
    name, versions = host_range()
    version = around.version(name)
    configuration = launch.configuration(state)
    override = (configuration or {}).get("host_version")
    if isinstance(override, str):
        # Whether it is in range is a finding of the configuration itself.
        real = f"{name} {version}" if version else f"no {name}"
        text = f"host_version = {override} is taken in place of the real host ({real} is installed)"
        return [ok("manager.host", f"{text}; the findings under host are the real ones")]
    intended = EXTENSION_ID in launch.enabled(state)
    if version is None:
        unread = launch.file is not None and configuration is None
        if unread or not intended:
            return []
        return [
            error(
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
            (error if intended else warning)(
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


def _others(environ: Mapping[str, str], state: State, launch: Launch) -> list[Finding]:
    """Other enabled extensions that concern speculative decoding."""
    inherited = [] if launch.managed else enabled_bundles(environ)
    names = dict.fromkeys([*inherited, *launch.enabled(state)])
    ours, together = speculative_config(launch.configuration(state)), EXTENSION_ID in names
    found = []
    for name in names:
        theirs = state.speculative_config(name)
        if name == EXTENSION_ID:
            continue
        refused = together and ("vspec" in name or theirs not in (None, ours))
        if together and "vspec" in name:
            text = "is enabled too: DiffSpec refuses to start beside vSpec"
        elif refused:
            text = (
                "is enabled and has a speculative_config of its own: the Manager refuses to launch "
                "both"
            )
        elif together and theirs is not None:
            text = "has the same speculative_config: older Managers refuse to launch both"
        elif "vspec" in name or "spec-dec" in name or theirs is not None:
            text = "is enabled and concerns speculative decoding too"
        else:
            continue
        fix = f"{COMMAND} extension disable {name}"
        found.append((error if refused else warning)("manager.other", f"{name} {text}", fix))
    return found


def _exported(environ: Mapping[str, str], launch: Launch) -> list[Finding]:
    if ENABLED_BUNDLES in environ and not launch.managed:
        # Inside a launch of the Manager these are its own.
        return []
    if given := [name for name in OWN_VARIABLES if name in environ]:
        listed = ", ".join(given)
        text = f"{listed}: exported already, which `{COMMAND} run` refuses (its dry run does not)"
        return [error("manager.exported", text, f"unset {' '.join(given)}")]
    return []


def _dropped_plugins(around: Surroundings, state: State, launch: Launch) -> list[Finding]:
    if launch.managed:  # then the list it will set is judged among the plugins
        return []
    general = plugins.ascend_plugins(around).get(plugins.GROUP, [])
    allowed = around.environ.get(plugins.ALLOW_LIST)
    if not general or allowed is not None or EXTENSION_ID not in state.enabled():
        return []
    complete = ",".join([plugins.ASCEND_PLATFORM, *general, plugins.PLUGIN])
    return [
        warning(
            "manager.plugins",
            f"the Manager will set {plugins.ALLOW_LIST}={plugins.ASCEND_PLATFORM},"
            f"{plugins.PLUGIN}, which keeps {', '.join(general)} of {ASCEND} from being loaded",
            f"export {plugins.ALLOW_LIST}={complete} before `{COMMAND} run`",
        )
    ]
