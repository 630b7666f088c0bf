# SPDX-License-Identifier: Apache-2.0
"""The identity rule: equal, tied or different."""

from __future__ import annotations

import math

import pytest

from diffspec.testbed.identity import compare, first_difference


@pytest.mark.parametrize(
    ("ours", "theirs", "at"),
    [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([], [], None)],
)
def test_first_difference(ours: list[int], theirs: list[int], at: int | None) -> None:
    assert first_difference(ours, theirs) == at


def test_equal_answers_have_no_difference() -> None:
    assert compare([5, 6], [5, 6], [{5: 1.0}, {6: 1.0}], "float32") is None


@pytest.mark.parametrize(
    ("dtype", "gap", "tie"),
    [
        ("float32", 5e-5, True),
        ("float32", 2e-4, False),
        # At 20 a bfloat16 step is 1/8.
        ("bfloat16", 0.125, True),
        ("bfloat16", 0.25, False),
    ],
)
def test_the_targets_own_gap_decides(dtype: str, gap: float, tie: bool) -> None:
    found = compare([5, 7], [5, 6], [{5: 20.0, 9: 1.0}, {6: 20.0, 7: 20.0 - gap}], dtype)
    assert found is not None
    assert (found.at, found.candidates, found.tie) == (1, (7, 6), tie)
    assert found.gap == pytest.approx(gap)


def test_a_token_the_target_never_considered_is_no_tie() -> None:
    found = compare([7], [6], [{6: 20.0, 5: 19.9}], "bfloat16")
    assert found is not None
    assert found.gap == math.inf
    assert not found.tie
