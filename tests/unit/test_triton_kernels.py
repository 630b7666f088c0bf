# SPDX-License-Identifier: Apache-2.0
"""Our Triton kernels without a GPU: interpreted, and compiled for one.

Triton interprets only if told so before its first import, and other tests import it otherwise; so
each part runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from diffspec.compact_kv import kernels
from diffspec.compact_kv.kernels import TORCH, TRITON, KernelChoice, kernels_for, try_kernel
from diffspec.testbed.offline import run_in_child

HERE = Path(__file__).parent
CPU = torch.device("cpu")
EXTRA_HAS_IT = (platform.system(), platform.machine()) == ("Linux", "x86_64")
with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not EXTRA_HAS_IT,
    reason="the test extra has no Triton for this platform",
)


@with_triton
@pytest.mark.parametrize("cases", ["triton_scoring_cases.py", "triton_attention_cases.py"])
def test_interpreted(cases: str) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / cases],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout[-8000:] + child.stderr[-2000:]
    assert "skipped" not in child.stdout


#: Compute capability, type, head dimension, query heads per KV head.
COMPILED = (
    (80, "bfloat16", 128, 4),
    (90, "bfloat16", 128, 4),
    (90, "float16", 64, 1),
    (90, "float32", 256, 5),
)


@with_triton
def test_compiled(tmp_path: Path) -> None:
    """What the interpreter lets pass may be no Triton at all."""
    context = 131072
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done: list[list[dict[str, Any]]] = run_in_child(
        "tests.unit.triton_compile:compile_kernels",
        {"cases": COMPILED, "context": context},
        env=env,
    )
    for (_, dtype, dim, group), parts in zip(COMPILED, done, strict=True):
        score, attend, combine = parts
        assert [p["kernel"] for p in parts] == ["_score_tile", "_attend_split", "_combine_splits"]
        for part in parts:
            assert part["shared"] <= 99 << 10, "more than a block gets on the smallest such GPU"
            assert all(n < 65536 for n in part["grid"][1:])
            assert part["wide_loads"] > 0, "memory is read in pieces of less than 16 bytes"
        for part in (score, attend):
            assert part["tensor_cores"] == (dtype != "float32")
        tile = min(256, 2**15 // (dim * getattr(torch, dtype).itemsize))
        assert score["grid"] == [8, context // tile, 8]
        assert attend["grid"] == [2048 // tile, 8, 8]
        assert combine["grid"] == [8 * group, 8]


def test_the_choice_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(kernels_for(CPU)) == "torch (device cpu)"
    assert str(kernels_for(torch.device("meta"))) == "torch (device meta)"
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: object())
    assert kernels_for(torch.device("cuda")) == TRITON
    assert str(TRITON) == "triton"
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    assert str(kernels_for(torch.device("cuda"))) == "torch (triton is not installed)"


def test_a_kernel_is_built_only_if_wanted() -> None:
    def never() -> None:
        raise AssertionError

    why = KernelChoice("torch", "device cpu")
    assert try_kernel(why, never) == (why, None)
    assert try_kernel(TORCH, never) == (TORCH, None)
    assert try_kernel(TRITON, lambda: 5) == (TRITON, 5)


@pytest.mark.parametrize(
    ("error", "reason", "logged"),
    [
        (ValueError("head dimension 80"), "head dimension 80", False),
        (ImportError("no triton"), "ImportError from triton", True),
        (RuntimeError("out of shared memory"), "RuntimeError from triton", True),
    ],
)
def test_a_kernel_that_cannot_run_says_why(
    error: Exception, reason: str, logged: bool, log: list[str]
) -> None:
    def fail() -> None:
        raise error

    assert try_kernel(TRITON, fail) == (KernelChoice("torch", reason), None)
    assert bool(log) == logged
