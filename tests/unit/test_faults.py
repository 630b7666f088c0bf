# SPDX-License-Identifier: Apache-2.0
"""The fault log: counting, one traceback per kind, giving up."""

from __future__ import annotations

import logging

import pytest

from diffspec.proposer.faults import PATIENCE, FaultLog


def fail(log: FaultLog, kind: str, message: str = "broken") -> None:
    try:
        raise RuntimeError(message)
    except RuntimeError as error:
        log.record(kind, error)


def test_each_kind_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = FaultLog()
    with caplog.at_level(logging.ERROR, logger="vllm.diffspec"):
        fail(log, "drafting", "first")
        log.clear_run()
        fail(log, "drafting", "second")
        fail(log, "ingesting", "third")
    assert log.counts == {"drafting": 2, "ingesting": 1}
    assert [r.args[0] for r in caplog.records if r.args] == ["drafting", "ingesting"]
    assert "RuntimeError: first" in caplog.text
    assert "in fail" in caplog.text
    assert "second" not in caplog.text
    assert "third" in caplog.text


def test_gives_up_after_faults_in_a_row_only(caplog: pytest.LogCaptureFixture) -> None:
    log = FaultLog()
    for _ in range(3):
        for _ in range(PATIENCE - 1):
            fail(log, "drafting")
        log.clear_run()
    assert not log.gave_up
    with caplog.at_level(logging.ERROR, logger="vllm.diffspec"):
        for kind in ["drafting", "ingesting"] * PATIENCE:
            fail(log, kind)
    assert log.gave_up
    assert caplog.text.count("drafts no more") == 1
    log.clear_run()
    assert log.gave_up


def test_another_exception_of_the_same_kind_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FaultLog()
    with caplog.at_level(logging.ERROR, logger="vllm.diffspec"):
        log.record("drafting", ValueError("one"))
        log.record("drafting", KeyError("two"))
        log.record("drafting", ValueError("three"))
    assert log.counts == {"drafting": 3}
    assert [r.exc_info[0] for r in caplog.records if r.exc_info] == [ValueError, KeyError]


def test_giving_up_is_said_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    log = FaultLog()
    log.give_up("the pages are gone")
    log.give_up("again")
    assert log.gave_up
    assert [r.getMessage() for r in caplog.records if "the pages are gone" in r.getMessage()]
    assert not [r for r in caplog.records if "again" in r.getMessage()]
