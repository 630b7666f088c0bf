# SPDX-License-Identifier: Apache-2.0
"""Reads the log in which a host reports that an extension really worked in a live process."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from diffspec_manager_standin.discovery import Bundle

PATH_VARIABLE = "VLLM_HUST_EXT_EVIDENCE_PATH"
_SCHEMA = "vllm-hust-plugin-evidence/0.1"
_TAIL_BYTES = 1 << 20


def log_path(config: Path) -> Path:
    """The log beside the configuration file, unless the environment names another."""
    chosen = os.environ.get(PATH_VARIABLE)
    return Path(chosen) if chosen else config.with_name("runtime-evidence.jsonl")


def effective(bundle: Bundle, log: Path) -> str | None:
    """A sentence about the newest event of a process that is alive now, or None."""
    carriers = {
        (carrier.get("group"), carrier.get("name"))
        for carrier in bundle.manifest.document["implementation"]
        if carrier["type"] == "python_entry_point"
    }
    names = carriers | set(bundle.manifest.entry_points)
    for event in reversed(list(_events(log))):
        entry, process = event.get("entry_point") or {}, event.get("process") or {}
        wanted = {
            "schema": _SCHEMA,
            "binding_status": "bound",
            "event": "effective",
            "observation_kind": "runtime_effective",
        }
        if (
            wanted.items() <= event.items()
            and all(event.get(key) for key in ("plan_id", "launch_id"))
            and (entry.get("group"), entry.get("name")) in names
            and process.get("host") == socket.gethostname()
            and process.get("start_identity") == start_identity(process.get("pid"))
        ):
            return (
                f"live host runtime observer evidence launch_id={event['launch_id']} "
                f"pid={process['pid']} event_id={event.get('event_id')}"
            )
    return None


def start_identity(pid: object) -> str | None:
    """Process id and start time of a live process, which together are never used again."""
    with suppress(OSError, IndexError):
        # The command name before the last bracket may itself hold blanks and brackets.
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"pid:{pid}:start_ticks:{stat[22 - 3]}"
    return None


def _events(log: Path) -> Iterator[dict[str, Any]]:
    if not log.exists():
        return
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        for line in file:
            # The first line of the tail is cut as a rule.
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event
