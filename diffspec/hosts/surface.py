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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from diffspec.hosts import releases
from diffspec.hosts.releases import SUPPORTED, TESTED
from diffspec.hosts.touch_point import PACKAGES, Host
from diffspec.hosts.touch_points import TOUCH_POINTS, Stage, TouchPoint, rows_for
from diffspec.hosts.unsupported import UNSUPPORTED

__all__ = [
    "SUPPORTED",
    "TESTED",
    "TOUCH_POINTS",
    "UNSUPPORTED",
    "HostError",
    "Mismatch",
    "check_surface",
    "installed_version",
    "require_surface",
    "rows_to_check",
]

ImportModule = Callable[[str], Any]


class HostError(Exception):
    """The host cannot carry DiffSpec: wrong version, missing touch point, other pages or parts."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between a touch point and a host: it is not there, or is another."""

    point: TouchPoint
    text: str
    kind: Literal["absent", "differs"] = "differs"


def check_surface(
    table: Iterable[TouchPoint] = TOUCH_POINTS,
    import_module: ImportModule = importlib.import_module,
) -> list[Mismatch]:
    """Compare ``table`` with the host and return what differs.

    Imports every module the table names, so a caller that must stay light passes the rows of one
    stage. Never raises for a host that differs.
    """
    return [found for point in table if (found := _mismatch(point, import_module))]


def require_surface(
    stages: Sequence[Stage] = ("config", "worker", "load"),
    *,
    platform: str | None = None,
    table: Sequence[TouchPoint] = TOUCH_POINTS,
    import_module: ImportModule = importlib.import_module,
) -> None:
    """Refuse a host that is of another version or differs from the table.

    ``platform`` is the device type (``cpu``, ``cuda``, ``npu``); rows for another one are skipped,
    and with None only rows for any platform are checked. On ``npu`` the host is vLLM-Ascend with
    the vLLM it runs in; each has to be of an accepted release, and the two made for each other.

    Raises:
        HostError: naming the versions, every difference, the tested versions and a way out.
    """
    names, differences = [], []
    versions: dict[Host, str] = {}
    for host in releases.hosts_of(platform):
        version, problem = installed_version(host, import_module)
        names.append(f"{releases.TITLE[host]} {version}")
        if problem:
            differences.append(problem)  # and its rows would say nothing else
            continue
        versions[host] = version
        if not releases.is_accepted(host, version, platform):
            lines = releases.lines(host, platform)
            of = "" if platform != "npu" else f" of {releases.TITLE[host]}"
            differences.append(f"only {lines}{of} is supported")
    both = len(versions) == 2 and not differences
    if both and (problem := releases.pair_problem(versions["vllm"], versions["vllm-ascend"])):
        differences.append(problem)
    rows = rows_to_check(platform, versions, rows_for(platform, stages, table))
    differences += [found.text for found in check_surface(rows, import_module)]
    if differences:
        raise HostError(
            f"vllm-diffspec: host {' with '.join(reversed(names))} is not compatible: "
            f"{'; '.join(dict.fromkeys(differences))}. Tested: {releases.tested(platform)}. "
            "Remove draft_context_policy or install a tested version."
        )


def rows_to_check(
    platform: str | None, versions: Mapping[Host, str], table: Sequence[TouchPoint] = TOUCH_POINTS
) -> tuple[TouchPoint, ...]:
    """The rows for a device type that are about the given versions of its host packages."""
    return tuple(
        point
        for point in rows_for(platform, table=table)
        if point.host in versions and releases.holds_for(point, versions[point.host])
    )


def installed_version(host: Host, import_module: ImportModule) -> tuple[str, str | None]:
    """What a host package calls itself, and why it cannot say so, else None.

    vLLM has ``__version__``; vLLM-Ascend leaves it to its module ``_version``. Distribution names
    do not serve: builds of both packages go by several.
    """
    (package,) = (name for name, known in PACKAGES.items() if known == host)
    try:
        module = import_module(package)
    except Exception as error:  # whatever a broken or missing package raises
        reason = f"{package} cannot be imported ({type(error).__name__}: {error})"
        return "(absent)" if isinstance(error, ModuleNotFoundError) else "unknown", reason
    if (version := getattr(module, "__version__", None)) is None:
        try:
            version = getattr(import_module(f"{package}._version"), "__version__", None)
        except Exception:  # a package without a version is of no accepted one
            version = None
    return str(version or "unknown"), None


def _mismatch(point: TouchPoint, import_module: ImportModule) -> Mismatch | None:
    try:
        found: Any = import_module(point.module)
    except Exception as error:  # a broken host module is a difference, whatever it raises
        text = f"module {point.module} cannot be imported ({type(error).__name__}: {error})"
        return Mismatch(point, text, "absent")
    owner = point.module
    for part in point.name.split("."):
        if not hasattr(found, part):
            return Mismatch(point, f"{owner} has no {part}", "absent")
        found, owner = getattr(found, part), part
    if missing := [name for name in point.attributes if not declares(found, name)]:
        return Mismatch(point, f"{point.name} lacks {', '.join(missing)}")
    if point.parameters and (other := _signature_difference(point, found)):
        return Mismatch(point, other)
    return None


def _signature_difference(point: TouchPoint, function: Any) -> str | None:
    if not callable(function):
        return f"{point.name} is not callable"
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


def declares(cls: Any, name: str) -> bool:
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
