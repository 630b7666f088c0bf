# SPDX-License-Identifier: Apache-2.0
"""DiffSpec beside vLLM's own padded EAGLE-3 and the target alone, on random weights."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from scipy import stats

from tests.engine.conftest import TOKENS

pytestmark = pytest.mark.engine


def test_drafts_equal_stock_while_the_context_fits(random_arms: Any) -> None:
    """Random weights: any difference in projection, position, feature or chain would show."""
    stock, ours = random_arms["stock"]["proposed"], random_arms["diffspec"]["proposed"]
    assert [len(rows) for rows in ours] == [len(rows) for rows in stock]
    assert sum(len(rows) for rows in ours) >= 4 * TOKENS
    assert ours == stock


def test_output_equals_target_only(random_arms: Any, target_only: Any) -> None:
    assert random_arms["diffspec"]["tokens"] == target_only["tokens"]
    assert random_arms["stock"]["tokens"] == target_only["tokens"]


def test_sampling_keeps_the_distribution(random_arms: Any, target_only: Any) -> None:
    """The second token of each answer went through rejection sampling; after each first token
    its counts must fit what the target alone expects there."""
    second: dict[int, Counter[int]] = {}
    for first, token in random_arms["diffspec"]["samples"]:
        second.setdefault(first, Counter())[token] += 1
    tested = 0
    for first, counts in second.items():
        total = counts.total()
        expected = {t: total * math.exp(p) for t, p in target_only["after"][first].items()}
        common = {t: e for t, e in expected.items() if e >= 5}
        if total < 50 or len(common) < 2:
            continue
        tested += 1
        observed = [counts[t] for t in common]
        rest_expected = total - sum(common.values())
        bins = [*common.values()]
        if rest_expected >= 1:
            observed.append(total - sum(observed))
            bins.append(rest_expected)
        scale = sum(observed) / sum(bins)
        p = stats.chisquare(observed, [b * scale for b in bins]).pvalue
        assert p > 1e-4, (first, observed, bins)
        for token, count in counts.items():
            assert token in expected or count <= 3 + total // 20, "a token the target never says"
    assert tested, "no first token was common enough to test anything"
