# SPDX-License-Identifier: Apache-2.0
"""What the doctor finds: one finding a line, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from diffspec import __version__

Level = Literal["ok", "warning", "error"]

SCHEMA = "diffspec-doctor/1"
FINE, WARNED, FAILED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``id`` is ``area.subject`` and stays the same between releases;
    ``what`` says what was found, ``fix`` what to change, empty where nothing has to."""

    id: str
    level: Level
    what: str
    fix: str = ""

    @property
    def area(self) -> str:
        """The part of ``id`` before the first dot."""
        return self.id.partition(".")[0]

    def to_json(self) -> dict[str, str]:
        """The finding as one JSON object."""
        return {"id": self.id, "level": self.level, "what": self.what, "fix": self.fix}


def ok(id: str, what: str) -> Finding:
    """A finding that needs no change."""
    return Finding(id, "ok", what)


def warning(id: str, what: str, fix: str = "") -> Finding:
    """A finding that does not stop a launch but should be known."""
    return Finding(id, "warning", what, fix)


def error(id: str, what: str, fix: str = "") -> Finding:
    """A finding with which the launch fails, or runs without DiffSpec though it was asked for."""
    return Finding(id, "error", what, fix)


def from_message(id: str, level: Level, message: str) -> Finding:
    """A finding from a refusal's text, which says what to do after its last semicolon."""
    what, _, fix = message.rpartition("; ")
    return Finding(id, level, what or fix, fix if what else "")


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one run, in the order they were made."""

    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Report:
        """A report of ``findings``, without exact repetitions."""
        return cls(tuple(dict.fromkeys(findings)))

    def count(self, level: Level) -> int:
        """How many findings have ``level``."""
        return sum(f.level == level for f in self.findings)

    def exit_status(self, *, strict: bool = False) -> int:
        """2 with an error; 1 with a warning if ``strict``; otherwise 0."""
        if self.count("error"):
            return FAILED
        return WARNED if strict and self.count("warning") else FINE

    def to_json(self, *, strict: bool = False) -> dict[str, Any]:
        """The whole report as one JSON object."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "exit_status": self.exit_status(strict=strict),
            "findings": [f.to_json() for f in self.findings],
        }
