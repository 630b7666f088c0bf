# SPDX-License-Identifier: Apache-2.0
"""A configuration file for the extension manager (diffspec.json), or one the Manager has stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffspec.configuration.check import check as check_document
from diffspec.configuration.document import read
from diffspec.doctor.findings import Finding, error, from_message, ok
from diffspec.settings import ConfigError

_EXPLAIN = "see diffspec config explain"


def check(
    path: Path, environ: Mapping[str, str] | None = None
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The document in ``path``, None if it cannot be read, and what is wrong with it."""
    try:
        document = read(path)
    except ConfigError as failure:
        fix = "correct the file; `diffspec config init` writes a valid one"
        return None, [error("config.json", problem, fix) for problem in failure.problems]
    return document if isinstance(document, dict) else None, judge(document, str(path), environ)


def judge(document: object, name: str, environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Shape, nesting, keys and values of a configuration; ``name`` is how findings call it."""
    verdict = check_document(document, environ)
    found = [error("config.content", f"{name}: {p}", _EXPLAIN) for p in verdict.problems]
    if not found:
        text = f"{name}: shape, nesting, DiffSpec's keys and values are right"
        found.append(ok("config.content", text))
    for text in verdict.warnings:
        found.append(from_message("config.incomplete", "warning", f"{name}: {text}"))
    return found + [ok("config.note", f"{name}: {note}") for note in verdict.notes]
