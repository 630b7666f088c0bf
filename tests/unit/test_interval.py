# SPDX-License-Identifier: Apache-2.0
"""When a selection is due: by the configured interval, or later while acceptance holds."""

from __future__ import annotations

import numpy as np
import pytest

from diffspec.adaptive_depth.interval import RetrievalInterval


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def due(interval: RetrievalInterval, steps: int, ahead: int, slot: int = 0) -> bool:
    (late,) = interval.overdue(array(slot), array(steps), array(ahead))
    return bool(late)


@pytest.mark.parametrize(("steps", "late"), [(3, False), (4, True), (5, True)])
def test_without_reach_the_interval_is_the_configured_one(steps: int, late: bool) -> None:
    interval = RetrievalInterval(2, interval=4)
    interval.observe(array(0), array(3), array(3))
    assert due(interval, steps, ahead=1) == late


def test_a_selection_waits_until_its_reach_ends_or_a_draft_is_rejected() -> None:
    interval = RetrievalInterval(2, interval=4, reach=64)
    interval.observe(array(0), array(3), array(3))
    assert not due(interval, 9, ahead=64)
    assert due(interval, 9, ahead=65)
    interval.observe(array(0), array(3), array(2))
    assert due(interval, 9, ahead=10)
    assert not due(interval, 3, ahead=10), "never earlier than configured"
    assert not due(interval, 9, ahead=10, slot=1), "another request's rejection is its own"
    interval.renewed(array(0))
    assert not due(interval, 9, ahead=10)


def test_what_holds_is_measured_by_what_is_usual_for_the_request() -> None:
    interval = RetrievalInterval(1, interval=4, reach=64)
    for _ in range(200):
        interval.observe(array(0), array(4), array(2))
    interval.renewed(array(0))
    interval.observe(array(0), array(4), array(2))
    assert not due(interval, 9, ahead=10)
    interval.observe(array(0), array(4), array(1))
    assert due(interval, 9, ahead=10)
    interval.forget(0)
    interval.observe(array(0), array(4), array(3))
    assert due(interval, 9, ahead=10), "the slot's next request starts anew"
