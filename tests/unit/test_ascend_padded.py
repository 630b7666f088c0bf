# SPDX-License-Identifier: Apache-2.0
"""Which rows of a padded batch hold, against one request after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffspec.hosts.ascend.padded import count_sampled, held_rows

DEPTH = 4


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Rows, drafts, tokens sampled and context length of each request."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        drafted = draw(st.integers(0, DEPTH))
        rows = drafted + 1 if drafted else draw(st.integers(1, 9))
        sampled = draw(st.integers(1, drafted + 1)) if drafted else draw(st.integers(0, 1))
        found.append((rows, drafted, sampled, rows + draw(st.integers(0, 50))))
    return found


@given(requests())
def test_every_request_keeps_its_rows_up_to_the_last_accepted_one(
    batch: list[tuple[int, int, int, int]],
) -> None:
    rows, drafted, sampled, lengths = (np.array(column) for column in zip(*batch, strict=True))
    held = held_rows(np.concatenate(([0], np.cumsum(rows))), lengths, drafted, sampled)
    kept, first, expected_last, expected_starts, expected_lengths = [], 0, [], [0], []
    for count, drafts, tokens, length in batch:
        # Of the drafts, one less than the tokens sampled were accepted.
        keep = count - (drafts - (tokens - 1)) if drafts else count
        kept += range(first, first + keep)
        expected_last.append(first + keep - 1)
        expected_starts.append(len(kept))
        expected_lengths.append(length - (count - keep))
        first += count
    assert held.last.tolist() == expected_last
    assert held.row_starts.tolist() == expected_starts
    assert held.lengths.tolist() == expected_lengths
    if held.rows is None:
        assert kept == list(range(first))
    else:
        assert held.rows.tolist() == kept


@pytest.mark.parametrize(("drafted", "sampled"), [(3, 0), (3, 5), (1, 3)])
def test_what_cannot_be_is_an_error(drafted: int, sampled: int) -> None:
    starts = np.array([0, drafted + 1])
    with pytest.raises(ValueError, match="tokens sampled"):
        held_rows(starts, np.array([9]), np.array([drafted]), np.array([sampled]))


def test_tokens_are_counted_where_they_mean_something() -> None:
    tokens = np.array([[5, 6, -1, -1], [7, 90, 3, -1], [8, -1, -1, -1], [1, 2, 3, 4]])
    counts = count_sampled(tokens, np.array([2]), vocabulary=90)
    assert counts.tolist() == [2, 2, 0, 4]
    assert count_sampled(tokens[:, :1], np.zeros(0, dtype=np.int64), 90).tolist() == [1] * 4
