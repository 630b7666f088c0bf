# SPDX-License-Identifier: Apache-2.0
"""The operator's choices in one JSON file: what is enabled, and each extension's configuration."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

PATH_VARIABLE = "VLLM_HUST_EXT_CONFIG"
_SCHEMA = 2


@dataclass
class Entry:
    """What is stored for one extension id."""

    enabled: bool = False
    configuration: dict[str, Any] = field(default_factory=dict)


@dataclass
class State:
    """The stored entries by id. Nothing locks the file: the last writer wins."""

    path: Path
    entries: dict[str, Entry]

    @property
    def enabled(self) -> list[str]:
        return sorted(i for i, entry in self.entries.items() if entry.enabled)

    def entry(self, name: str) -> Entry:
        """The entry of an id, added if there is none."""
        return self.entries.setdefault(name, Entry())

    def configuration(self, name: str) -> dict[str, Any]:
        return self.entries[name].configuration if name in self.entries else {}

    def save(self) -> None:
        """Replace the file in one step; it is readable by its owner alone."""
        extensions = {
            name: {"enabled": entry.enabled, "configuration": entry.configuration}
            for name, entry in self.entries.items()
        }
        text = json.dumps(
            {"schema_version": _SCHEMA, "extensions": extensions}, indent=2, sort_keys=True
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp makes the file with mode 0600.
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def config_path() -> Path:
    """Where the choices are kept."""
    chosen = os.environ.get(PATH_VARIABLE)
    return Path(chosen) if chosen else user_config_path("vllm-hust-ext") / "config.json"


def load() -> State:
    """Read the file; one that does not exist is an empty state.

    Raises:
        ValueError: if it is not what :meth:`State.save` writes, or the older schema 1.
    """
    path = config_path()
    if not path.exists():
        return State(path, {})
    document = json.loads(path.read_text(encoding="utf-8"))
    schema = document.get("schema_version") if isinstance(document, dict) else None
    if schema == 1:
        return State(path, {str(name): Entry(enabled=True) for name in document["enabled"]})
    if schema != _SCHEMA:
        raise ValueError(f"unsupported configuration schema_version {schema!r} in {path}")
    return State(path, {name: _entry(name, raw) for name, raw in document["extensions"].items()})


def _entry(name: str, raw: object) -> Entry:
    if not isinstance(raw, dict) or not set(raw) <= {"enabled", "configuration"}:
        raise ValueError(f"stored entry of {name!r} is invalid")
    return Entry(bool(raw.get("enabled", False)), dict(raw.get("configuration", {})))
