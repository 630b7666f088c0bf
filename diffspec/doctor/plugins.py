# SPDX-License-Identifier: Apache-2.0
"""Whether every process of a launch will load the plugin, and nothing that gets in its way."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

from diffspec import __version__
from diffspec.doctor.findings import Finding, error, from_message, ok, warning
from diffspec.doctor.surroundings import ASCEND, Surroundings
from diffspec.environment import DISABLE, ENABLED_BUNDLES, vspec_switched_on, wanted
from diffspec.hosts.launch import LaunchFacts
from diffspec.hosts.unsupported import refusals

PLUGIN, GROUP = "diffspec", "vllm.general_plugins"
VALUE = "diffspec.plugin:register"
ALLOW_LIST = "VLLM_PLUGINS"
#: vLLM-Ascend's platform; the Manager adds it to the allow-list on every host.
ASCEND_PLATFORM = "ascend"
#: Groups that vLLM filters by the allow-list.
GROUPS = (
    GROUP,
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
    "vllm.endpoint_plugins",
)
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"

_TIMEOUT_S = 60
# What a worker process that vLLM spawns would see, and whether the entry point can be loaded there.
_LOOK = """
import importlib.metadata, json, sys
groups = json.loads(sys.argv[1])
found = [[g, e.name, e.value] for g in groups for e in importlib.metadata.entry_points(group=g)]
try:
    import diffspec, diffspec.plugin
    loaded, version = callable(diffspec.plugin.register), diffspec.__version__
except Exception as error:
    loaded, version = False, f"{type(error).__name__}: {error}"
print(json.dumps({"found": found, "loaded": loaded, "version": version}))
"""


def check(around: Surroundings) -> list[Finding]:
    """Visibility in a new process, the allow-list, and what switches the plugin off."""
    visible, names = _visible(around)
    found = [*visible, *_allow_list(around, names)]
    value = around.environ.get(DISABLE, "")
    if not wanted({DISABLE: value}):
        found.append(
            error(
                "plugins.disabled",
                f"{DISABLE}={value}: the plugin stays out, and vLLM will not know its keys",
                f"unset {DISABLE}",
            )
        )
    # Its bundle beside ours is a finding about the Manager.
    variables = {k: v for k, v in around.environ.items() if k != ENABLED_BUNDLES}
    marker = vspec_switched_on(variables)
    if marker is not None:
        found += [from_message("plugins.vspec", "error", _only(LaunchFacts(vspec=marker)))]
    if v2_runner(around.environ):
        found += [from_message("plugins.v2_runner", "error", _only(LaunchFacts(v2_runner=True)))]
    return found


def v2_runner(environ: Mapping[str, str]) -> bool:
    """Whether the environment forces vLLM's V2 model runner, read as vLLM reads it."""
    value = environ.get(RUNNER, "").strip()
    return value.isdigit() and int(value) != 0


def _only(facts: LaunchFacts) -> str:
    (text,) = refusals(facts)
    return text


def _visible(around: Surroundings) -> tuple[list[Finding], dict[str, set[str]]]:
    """Findings, and the plugin names a new process sees, by group."""
    try:
        run = around.python("-c", _LOOK, json.dumps(GROUPS), timeout=_TIMEOUT_S)
        run.check_returncode()
        answer = json.loads(run.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as failure:
        what = f"a new process of {around.executable} could not look for plugins: {failure}"
        return [error("plugins.visible", what, "see that this Python starts")], {}
    names: dict[str, set[str]] = {}
    for group, name, _ in answer["found"]:
        names.setdefault(group, set()).add(name)
    values = [v for group, name, v in answer["found"] if (group, name) == (GROUP, PLUGIN)]
    again = "reinstall vllm-diffspec in the Python that runs vLLM"
    if not values:
        text = f"a new process sees no entry point {PLUGIN} in {GROUP}"
        return [error("plugins.visible", text, again)], names
    if set(values) != {VALUE}:
        text = f"the entry point {PLUGIN} in {GROUP} leads to {', '.join(sorted(set(values)))}"
        return [error("plugins.visible", text, f"remove the other distribution, or {again}")], names
    if not answer["loaded"]:
        text = f"a new process cannot load {VALUE}: {answer['version']}"
        return [error("plugins.visible", text, again)], names
    if answer["version"] != __version__:
        text = f"a new process loads diffspec {answer['version']}, this is {__version__}"
        return [error("plugins.visible", text, "remove one of the two copies")], names
    return [ok("plugins.visible", f"a new process sees and loads {PLUGIN} = {VALUE}")], names


def ascend_plugins(around: Surroundings) -> dict[str, list[str]]:
    """Plugin names of the installed vLLM-Ascend, by group; its own entry points say them."""
    distribution = around.distribution(ASCEND)
    names: dict[str, list[str]] = {}
    for entry in distribution.entry_points if distribution else ():
        if entry.group in GROUPS:
            names.setdefault(entry.group, []).append(entry.name)
    return names


def _allow_list(around: Surroundings, seen: Mapping[str, set[str]]) -> list[Finding]:
    raw = around.environ.get(ALLOW_LIST)
    if raw is None:
        return [ok("plugins.allow_list", f"{ALLOW_LIST} is not set: vLLM loads every plugin")]
    allowed = raw.split(",")
    theirs = ascend_plugins(around)
    general = theirs.get(GROUP, [])
    platform = [n for group, names in theirs.items() if group != GROUP for n in names]
    complete = ",".join(dict.fromkeys([*(a.strip() for a in allowed if a.strip()),
                                       *platform, *general, PLUGIN]))  # fmt: skip
    fix = f"export {ALLOW_LIST}={complete}"
    shown = f'{ALLOW_LIST}="{raw}"'
    found = []
    if blank := [n for n in allowed if n != n.strip() and n.strip() not in allowed]:
        found.append(
            error(
                "plugins.allow_list",
                f"{shown}: vLLM keeps the blanks in {blank}, so these names match no plugin",
                fix,
            )
        )
    if PLUGIN not in allowed:
        found.append(
            error(
                "plugins.allow_list",
                f"{shown} leaves {PLUGIN} out: vLLM will refuse its keys as unexpected",
                fix,
            )
        )
    if missing := [name for name in platform if name not in allowed]:
        found.append(
            error(
                "plugins.allow_list",
                f"{shown} leaves {', '.join(missing)} out: one list filters every group of "
                "plugins, and without its platform vLLM-Ascend does not run",
                fix,
            )
        )
    if missing := [name for name in general if name not in allowed]:
        found.append(
            warning(
                "plugins.allow_list",
                f"{shown} leaves {', '.join(missing)} out, which vLLM-Ascend brings along and vLLM "
                f"loads where {ALLOW_LIST} is not set",
                fix,
            )
        )
    known = set().union(*seen.values()) if seen else set()
    unknown = [n for n in allowed if n.strip() and n == n.strip() and n not in known]
    if seen and (unknown := [n for n in unknown if n not in (PLUGIN, ASCEND_PLATFORM)]):
        found.append(
            warning(
                "plugins.allow_list",
                f"{shown} names {', '.join(unknown)}, which no installed distribution provides",
                "see that the names are spelt as their entry points are",
            )
        )
    return found or [ok("plugins.allow_list", f"{shown} names every plugin that is needed")]
