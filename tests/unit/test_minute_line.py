# SPDX-License-Identifier: Apache-2.0
"""The log line a minute: when it comes and what it says."""

from __future__ import annotations

import math

import pytest

from diffspec.hosts.vllm.minute_line import MinuteLine, describe

HEALTHY = {
    "depth/0": 120.0,
    "depth/2": 200.0,
    "depth/4": 680.0,
    "drafted": 3000.0,
    "accepted": 1900.0,
    "zero/no_gain": 120.0,
    "zero/no_slot": 0.0,
    "retrievals": 31.0,
    "faults/draft": 0.0,
    "break_even": 0.41,
    "acceptance_first": 0.72,
    "off": 0.0,
}


def test_a_healthy_minute() -> None:
    # 1 + 1900 / 1000; (2 * 200 + 4 * 680) / 880; 1900 / 3000; 120 / 1000.
    assert describe(HEALTHY, HEALTHY, 60.2) == (
        "DiffSpec, last 60 s: 2.9 tokens per step at mean depth 3.5 (accepted 63 % of drafted); "
        "12 % of steps without drafts (no gain); 31 retrievals; "
        "drafting pays from 41 % acceptance, now at 72 %"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"depth/0": 0.0, "zero/no_gain": 0.0, "retrievals": 1.0, "break_even": math.nan},
            "DiffSpec, last 60 s: 3.2 tokens per step at mean depth 3.5 (accepted 63 % of "
            "drafted); 1 retrieval",
        ),
        (
            {
                "depth/2": 0.0, "depth/4": 0.0, "drafted": 0.0, "accepted": 0.0,
                "retrievals": 0.0, "acceptance_first": math.nan,
            },
            "DiffSpec, last 60 s: 1.0 tokens per step; all steps without drafts (no gain); "
            "drafting pays from 41 % acceptance",
        ),
        (
            {"zero/no_gain": 3.0, "zero/no_slot": 117.0, "break_even": 1.0, "retrievals": 0.0},
            "DiffSpec, last 60 s: 2.9 tokens per step at mean depth 3.5 (accepted 63 % of "
            "drafted); 12 % of steps without drafts (no slot 12 %, no gain under 1 %); "
            "drafting pays at no acceptance",
        ),
        (
            {"depth/0": 1.0, "zero/no_gain": 0.0, "faults/draft": 2.0, "faults/other": 1.0},
            "DiffSpec, last 60 s: 3.2 tokens per step at mean depth 3.5 (accepted 63 % of "
            "drafted); under 1 % of steps without drafts; 3 faults, see the log; 31 retrievals; "
            "drafting pays from 41 % acceptance, now at 72 %",
        ),
        (
            {
                "depth/2": 0.0, "depth/4": 0.0, "drafted": 0.0, "accepted": 0.0,
                "retrievals": 0.0, "zero/no_gain": 0.0, "zero/fault": 120.0, "off": 1.0,
            },
            "DiffSpec, last 60 s: 1.0 tokens per step; drafting is off after faults, see the "
            "log; served as target-only",
        ),
        (
            {"drafted": 0.0, "accepted": 0.0, "depth/0": 0.0, "zero/no_gain": 0.0},
            "DiffSpec, last 60 s: 1.0 tokens per step at mean depth 3.5; 31 retrievals; "
            "drafting pays from 41 % acceptance, now at 72 %",
        ),
    ],
    ids=["unknown costs", "nothing pays", "out of slots", "faults", "off", "cut by the scheduler"],
)  # fmt: skip
def test_other_minutes(changes: dict[str, float], expected: str) -> None:
    numbers = HEALTHY | changes
    assert describe(numbers, numbers, 60.0) == expected


def steps(number: float) -> dict[str, float]:
    return {"depth/0": 0.0, "depth/3": number, "drafted": 3 * number, "accepted": number}


def test_one_line_a_minute_about_that_minute() -> None:
    line = MinuteLine(0.0)
    heard = {now: line.due(steps(now), now) for now in range(10, 190, 10)}
    assert [now for now, text in heard.items() if text] == [60, 120, 180]
    assert all("last 60 s: 2.0 tokens" in text for text in heard.values() if text)


def test_no_line_without_steps_and_none_about_a_pause() -> None:
    line = MinuteLine(0.0)
    assert not any(line.due(steps(0), now) for now in range(10, 610, 10))
    # Work begins after 600 s; the pause before is not part of what the line is about.
    assert not any(line.due(steps(now - 600), now) for now in range(610, 660, 10))
    text = line.due(steps(60), 660)
    assert text is not None
    assert "last 60 s" in text
    assert line.due(steps(60), 800) is None


def test_a_worker_that_began_anew_is_counted_from_zero() -> None:
    line = MinuteLine(0.0)
    assert line.due(steps(1000), 60.0)
    text = line.due({"depth/0": 5.0, "depth/3": 5.0, "accepted": 10.0, "drafted": 15.0}, 120.0)
    assert text is not None
    assert "2.0 tokens per step" in text
