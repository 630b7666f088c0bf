# SPDX-License-Identifier: Apache-2.0
"""Reads a JSON file the way a person has to correct it: by line, column and what was meant."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diffspec.settings import ConfigError

_HINTS = {
    "'": "JSON wants double quotes",
    "}": "is there a comma too many before it?",
    "]": "is there a comma too many before it?",
    "/": "JSON has no comments",
    "#": "JSON has no comments",
    "T": "JSON writes true, false and null",
    "F": "JSON writes true, false and null",
    "\ufeff": "save the file as UTF-8 without a byte order mark",
    "": "the file ends too early",
}


def read(path: Path) -> object:
    """What the JSON file at ``path`` holds.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8 or not JSON. Python reads ``NaN`` and
            lets the last of two equal keys win without a word; both are refused here.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start})") from error
    return parse(text, name=str(path))


def parse(text: str, *, name: str) -> object:
    """What a JSON text holds; ``name`` is how errors call it. Raises like :func:`read`."""
    twice: list[str] = []

    def keep_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                twice.append(f"{name}: {json.dumps(key)} is given twice in one object")
            found[key] = value
        return found

    try:
        document: object = json.loads(text, object_pairs_hook=keep_once)
        problems = twice + [
            f"{name}: {where} = {value}: not a number that JSON has"
            for where, value in _not_finite(document, "$")
        ]
    except json.JSONDecodeError as error:
        raise ConfigError(_malformed(name, error)) from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(f"{name}: {error}") from error
    if problems:
        raise ConfigError(*problems)
    return document


def _malformed(name: str, error: json.JSONDecodeError) -> str:
    lines = error.doc.splitlines() or [""]
    line = lines[min(error.lineno, len(lines)) - 1]
    hint = _HINTS.get(error.doc[error.pos : error.pos + 1])
    start = max(0, error.colno - 60)
    shown = line[start : start + 90]
    mark = " " * (error.colno - 1 - start) + "^"
    what = f"{error.msg} ({hint})" if hint else error.msg
    return f"{name}: line {error.lineno}, column {error.colno}: {what}\n      {shown}\n      {mark}"


def _not_finite(value: object, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _not_finite(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield where, value
