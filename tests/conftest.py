# SPDX-License-Identifier: Apache-2.0
"""Fixtures shared by all tests: the testbed's models, built once per run."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffspec.testbed.random_pair import RandomPair, build_random_pair
from diffspec.testbed.recall_pair import RecallPair, build_recall_pair
from diffspec.testbed.smollm2 import smollm2_folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for what a plain run leaves out or does otherwise."""
    group = parser.getgroup("diffspec")
    group.addoption(
        "--online", action="store_true", help="run tests that download packages from the index"
    )
    group.addoption(
        "--manager",
        choices=("standin", "path"),
        default="standin",
        help="whose vllm-hust-ext tests/lifecycle drives: the stand-in's, or that on the PATH",
    )


@pytest.fixture(scope="session")
def recall_pair(tmp_path_factory: pytest.TempPathFactory) -> RecallPair:
    """A float32 recall pair with the default arguments (two target layers)."""
    return build_recall_pair(tmp_path_factory.mktemp("recall-pair"))


@pytest.fixture(scope="session")
def random_pair(tmp_path_factory: pytest.TempPathFactory) -> RandomPair:
    """A float32 random pair with the default arguments (four target layers)."""
    return build_random_pair(tmp_path_factory.mktemp("random-pair"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in bfloat16, from the user's cache (converted on first use)."""
    return smollm2_folder()
