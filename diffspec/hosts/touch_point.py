# SPDX-License-Identifier: Apache-2.0
"""One place where DiffSpec meets its host, as data; nothing is imported for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["wrapped", "replaced", "overridden", "bound", "called", "read"]
Stage = Literal["config", "worker", "load"]
Host = Literal["vllm", "vllm-ascend"]

#: The host package a module belongs to, by the first part of its name.
PACKAGES: dict[str, Host] = {"vllm": "vllm", "vllm_ascend": "vllm-ascend"}


@dataclass(frozen=True, slots=True)
class TouchPoint:
    """One touch point.

    ``target`` is ``module:qualified.name``. ``parameters`` are the parameter names a callable must
    have, in order; more are fine if they have defaults. ``attributes`` are names that instances or
    the class must have. ``kind``: *wrapped* (calls through), *replaced* (module attribute set),
    *overridden* (in a subclass of ours), *bound* (set on one instance), *called*, *read*.
    ``stage`` is the first moment at which it is needed and checked. ``platform`` restricts the row
    to one device type, ``releases`` to releases of its host package (a version specifier, for what
    differs between supported releases; empty: all). Which releases are supported is bound in
    :mod:`diffspec.hosts.releases`; the one replaced function also in
    :data:`diffspec.hosts.vllm.sampling_fix.AFFECTED`.
    """

    target: str
    kind: Kind
    stage: Stage
    what: str
    why: str
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    platform: str = "any"
    releases: str = ""

    @property
    def module(self) -> str:
        """The module part of ``target``."""
        return self.target.partition(":")[0]

    @property
    def name(self) -> str:
        """The qualified name inside the module; the row's name in messages."""
        return self.target.partition(":")[2]

    @property
    def host(self) -> Host:
        """The host package whose surface this is."""
        return PACKAGES[self.module.partition(".")[0]]


def names(text: str) -> tuple[str, ...]:
    """The words of ``text``."""
    return tuple(text.split())
