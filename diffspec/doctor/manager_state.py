# SPDX-License-Identifier: Apache-2.0
"""What the extension manager has stored, and what a launch by it would have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffspec.doctor.arguments import MANAGER
from diffspec.doctor.plugins import ALLOW_LIST, ASCEND_PLATFORM, PLUGIN
from diffspec.environment import ENABLED_BUNDLES, EXTENSION_ID

STATE_VARIABLE = "VLLM_HUST_EXT_CONFIG"


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
        return speculative_config(self.configuration(name))


def speculative_config(configuration: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The object a configuration holds for ``--speculative-config``."""
    options = (configuration or {}).get("launch_options")
    value = options.get("speculative_config") if isinstance(options, dict) else None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Launch:
    """How the Manager comes into what is judged.

    ``command`` is its name as typed, None if it does not run a command; ``file`` is a configuration
    that is judged, ``document`` what that holds, None if it cannot be read. ``direct`` says that a
    command was given and neither of the two; without any, nothing is known of how vLLM is started.
    """

    command: str | None = None
    file: Path | None = None
    document: Mapping[str, Any] | None = None
    direct: bool = False

    @property
    def managed(self) -> bool:
        """Whether it is the Manager that would launch."""
        return self.file is not None or self.command is not None

    def enabled(self, state: State) -> list[str]:
        """Ids enabled for the launch; a file that is judged counts as configured and enabled."""
        assumed = [] if self.file is None else [EXTENSION_ID]
        return sorted({*state.enabled(), *assumed})

    def configuration(self, state: State) -> Mapping[str, Any] | None:
        """Our configuration: the file's, without a file the stored one."""
        return state.configuration(EXTENSION_ID) if self.file is None else self.document

    def environment(self, environ: Mapping[str, str], state: State) -> dict[str, str]:
        """What vLLM's process gets of ``environ``; plugins of other extensions are left out."""
        if not self.managed:
            return dict(environ)
        ids = self.enabled(state)
        changed = {ENABLED_BUNDLES: ",".join(ids)}
        if EXTENSION_ID in ids:
            before = [name for name in environ.get(ALLOW_LIST, "").split(",") if name]
            names = dict.fromkeys([*before, ASCEND_PLATFORM, PLUGIN])
            changed[ALLOW_LIST] = ",".join(names)
        return {**environ, **changed}


def state_path(environ: Mapping[str, str]) -> Path:
    """Where the Manager keeps its configuration on Linux."""
    if given := environ.get(STATE_VARIABLE):
        return Path(given)
    base = environ.get("XDG_CONFIG_HOME")
    folder = Path(base) if base else Path(environ.get("HOME", "~")) / ".config"
    return folder.expanduser() / MANAGER / "config.json"


def read_state(environ: Mapping[str, str]) -> State:
    """The Manager's stored configuration; never raises."""
    path = state_path(environ)
    if not path.exists():
        return State(path)
    try:
        # As plainly as the Manager reads it: NaN and repeated keys do not stop it.
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as failure:
        return State(path, problem=f"{path}: {failure}")
    schema = document.get("schema_version") if isinstance(document, dict) else None
    if schema == 1 and isinstance(names := document.get("enabled"), list):
        return State(path, {str(name): {"enabled": True} for name in names})
    entries = document.get("extensions") if schema == 2 else None
    if not isinstance(entries, dict):
        return State(path, problem=f"{path}: not of a schema the Manager reads (2, or 1)")
    for name, entry in entries.items():
        if not isinstance(entry, dict) or not set(entry) <= {"enabled", "configuration"}:
            text = f"{path}: the entry of {name} is not one of enabled and configuration alone"
            return State(path, problem=text)
    return State(path, entries)
