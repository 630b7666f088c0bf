# SPDX-License-Identifier: Apache-2.0
"""Stands in for what vLLM-Ascend imports from an Ascend machine. Nothing of it computes."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar
from unittest.mock import MagicMock

import torch

#: Packages that exist on Ascend machines only.
PACKAGES = ("torch_npu", "torchair", "acl", "memfabric_hybrid", "memcache_hybrid")


class _Anything(types.ModuleType):
    """A module that has every name."""

    __version__ = "2.10.0"
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Event:
    def record(self, *args: object) -> None:
        pass


def install() -> None:
    """Make the packages importable, and give torch its ``npu`` namespace."""
    sys.meta_path.insert(0, _Finder())
    npu = _Anything("torch.npu")
    npu.Event = _Event  # type: ignore[attr-defined]
    npu.Stream = type("Stream", (), {})  # type: ignore[attr-defined]
    npu.NPUGraph = type("NPUGraph", (), {})  # type: ignore[attr-defined]
    npu.is_available = lambda: False  # type: ignore[attr-defined]
    npu.is_current_stream_capturing = lambda: False  # type: ignore[attr-defined]
    sys.modules["torch.npu"] = npu
    torch.npu = npu  # type: ignore[attr-defined]
