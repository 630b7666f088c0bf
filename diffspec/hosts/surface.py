# SPDX-License-Identifier: Apache-2.0
"""Checks the installed host against the table of touch points.

:data:`TOUCH_POINTS` says what DiffSpec relies on, :data:`UNSUPPORTED` what it refuses; this module
compares the first with what is installed. No vLLM import happens before a check is asked for.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from diffspec.hosts.touch_points import TOUCH_POINTS, Stage, TouchPoint
from diffspec.hosts.unsupported import UNSUPPORTED

__all__ = [
    "SUPPORTED",
    "TESTED",
    "TOUCH_POINTS",
    "UNSUPPORTED",
    "HostError",
    "Mismatch",
    "check_surface",
    "require_surface",
]

#: Exact host releases on which the test suite was run.
TESTED: tuple[str, ...] = ("0.28.0",)
#: Release lines (major, minor) that are accepted if the surface matches.
SUPPORTED: tuple[tuple[int, int], ...] = ((0, 28),)

ImportModule = Callable[[str], Any]


class HostError(Exception):
    """The host cannot carry DiffSpec: wrong version, missing touch point, other pages or parts."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between a touch point and the installed host."""

    point: TouchPoint
    text: str


def check_surface(
    table: Iterable[TouchPoint] = TOUCH_POINTS,
    import_module: ImportModule = importlib.import_module,
) -> list[Mismatch]:
    """Compare ``table`` with the host and return what differs.

    Imports every module the table names, so a caller that must stay light passes the rows of one
    stage. Never raises for a host that differs.
    """
    found = []
    for point in table:
        if text := _difference(point, import_module):
            found.append(Mismatch(point, text))
    return found


def require_surface(
    stages: Sequence[Stage] = ("config", "worker", "load"),
    *,
    platform: str | None = None,
    table: Iterable[TouchPoint] = TOUCH_POINTS,
    import_module: ImportModule = importlib.import_module,
) -> None:
    """Refuse a host that is of another version or differs from the table.

    ``platform`` is the device type (``cpu``, ``cuda``); rows for another one are skipped, and with
    None only rows for any platform are checked.

    Raises:
        HostError: naming the version, every difference, the tested versions and a way out.
    """
    version = str(getattr(import_module("vllm"), "__version__", "unknown"))
    rows = [p for p in table if p.stage in stages and p.platform in ("any", platform)]
    differences = [m.text for m in check_surface(rows, import_module)]
    if not _supported(version):
        lines = ", ".join(f"{major}.{minor}.x" for major, minor in SUPPORTED)
        differences.insert(0, f"only {lines} is supported")
    if differences:
        raise HostError(
            f"vllm-diffspec: host vLLM {version} is not compatible: {'; '.join(differences)}. "
            f"Tested: {', '.join(TESTED)}. "
            "Remove draft_context_policy or install a tested version."
        )


def _supported(version: str) -> bool:
    try:
        return Version(version).release[:2] in SUPPORTED
    except InvalidVersion:
        return False


def _difference(point: TouchPoint, import_module: ImportModule) -> str | None:
    try:
        found: Any = import_module(point.module)
    except Exception as error:  # a broken host module is a difference, whatever it raises
        return f"module {point.module} cannot be imported ({type(error).__name__}: {error})"
    owner = point.module
    for part in point.name.split("."):
        if not hasattr(found, part):
            return f"{owner} has no {part}"
        found, owner = getattr(found, part), part
    if missing := [name for name in point.attributes if not _declares(found, name)]:
        return f"{point.name} lacks {', '.join(missing)}"
    return _signature_difference(point, found) if point.parameters else None


def _signature_difference(point: TouchPoint, function: Any) -> str | None:
    actual = inspect.signature(inspect.unwrap(function)).parameters
    expected = f"expected {', '.join(point.parameters)}"
    for name in point.parameters:
        if name not in actual:
            return f"{point.name} lacks parameter {name!r} ({expected})"
    if [name for name in actual if name in point.parameters] != list(point.parameters):
        return f"{point.name} takes its parameters in another order ({expected})"
    for name, parameter in actual.items():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in point.parameters and not variadic and parameter.default is parameter.empty:
            return f"{point.name} needs an unknown parameter {name!r} ({expected})"
    return None


def _declares(cls: Any, name: str) -> bool:
    """Whether a class has ``name``, declares it or assigns it to ``self`` in one of its methods."""
    if hasattr(cls, name):
        return True
    if not inspect.isclass(cls):
        return False
    for base in cls.__mro__:
        if name in inspect.get_annotations(base):
            return True
        # torch's and Python's own bases assign nothing we rely on.
        if base.__module__.startswith("vllm") and name in _assigned_by(base):
            return True
    return False


@functools.cache
def _assigned_by(cls: type) -> set[str]:
    # From the source, because instances do not exist yet when a host has to be judged.
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return set()
    return assigned_to_self(tree)


def assigned_to_self(tree: ast.AST) -> set[str]:
    """Names of the attributes that a piece of source assigns to ``self``."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
