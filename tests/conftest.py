# SPDX-License-Identifier: Apache-2.0
"""Fixtures shared by all tests: the testbed's models, built once per run."""

from __future__ import annotations

import pytest

from diffspec.testbed.recall_pair import RecallPair, build_recall_pair


@pytest.fixture(scope="session")
def recall_pair(tmp_path_factory: pytest.TempPathFactory) -> RecallPair:
    """A float32 recall pair with the default arguments (two target layers)."""
    return build_recall_pair(tmp_path_factory.mktemp("recall-pair"))
