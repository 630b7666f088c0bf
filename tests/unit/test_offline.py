# SPDX-License-Identifier: Apache-2.0
"""What a process that runs an offline engine is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from diffspec.testbed.offline import environment


@pytest.fixture
def openmp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Intel's OpenMP in an environment of our own."""
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for name in list(os.environ):
        if name.startswith("KMP_") or name == "LD_PRELOAD":
            monkeypatch.delenv(name)
    return library


def test_threads_have_a_core_each(openmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 2})
    told = environment()
    assert told["KMP_AFFINITY"] == "granularity=fine,explicit,proclist=[2,7]"
    assert told["LD_PRELOAD"] == str(openmp)


def test_where_nothing_is_to_be_bound_nothing_is(openmp: Path) -> None:
    told = environment(VLLM_CPU_OMP_THREADS_BIND="nobind")
    assert not [name for name in told if name.startswith("KMP_")]
    assert told["LD_PRELOAD"] == str(openmp)
