# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of ``inside/`` beside the real vLLM-Ascend, in a process of that environment."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.ascend import environment

#: What the tests inside are, counted so that none can go missing unnoticed.
EXPECTED = 62


@pytest.mark.timeout(600)
def test_the_adapter_beside_the_real_package() -> None:
    environment.make()
    done = subprocess.run(
        [environment.PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ascend/inside"],
        cwd=environment.ROOT,
        # Nothing of any plugin: the entry points of the main environment are visible here.
        env={**os.environ, "VLLM_PLUGINS": "", "PYTHONPATH": str(environment.ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) >= EXPECTED, done.stdout[-500:]
    assert "skipped" not in done.stdout.splitlines()[-1]
