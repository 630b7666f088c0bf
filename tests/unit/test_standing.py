# SPDX-License-Identifier: Apache-2.0
"""For how long a choice of depths stands."""

from __future__ import annotations

import numpy as np
import pytest

from diffspec.adaptive_depth.shadow import LAST_GAP
from diffspec.adaptive_depth.standing import HOLD, LONGEST_HOLD, LONGEST_PAUSE, PAUSE, Standing

SLOTS, ROOM = np.array([0, 2]), np.array([5, 5])
DEPTHS, ALL = np.array([3, 0]), np.array([3, 2])


def stands(standing: Standing, step: int, **other: object) -> bool:
    asked = {"slots": SLOTS, "room": ROOM, "calm": True, **other}
    return standing.held(step=step, **asked) is not None  # type: ignore[arg-type]


def test_a_choice_holds_for_a_while_and_for_the_same_requests() -> None:
    standing = Standing()
    assert not stands(standing, 1)
    standing.take(SLOTS, DEPTHS, step=10, calm=False)
    assert stands(standing, 10 + HOLD - 1)
    assert not stands(standing, 10 + HOLD)
    assert not stands(standing, 11, slots=np.array([0, 1]))
    assert not stands(standing, 11, slots=SLOTS[:1])
    assert not stands(standing, 11, room=np.array([2, 5])), "no room for it any more"
    standing.forget()
    assert not stands(standing, 11)


@pytest.mark.parametrize("calm", [True, False])
def test_what_turns_out_the_same_again_holds_longer_while_all_is_calm(calm: bool) -> None:
    standing, step, held = Standing(), 0, []
    for _ in range(5):
        standing.take(SLOTS, ALL, step=step, calm=calm)
        begin = step
        while stands(standing, step):
            step += 1
        held.append(step - begin)
    assert held == ([4, 8, LONGEST_HOLD, LONGEST_HOLD, LONGEST_HOLD] if calm else [HOLD] * 5)
    if calm:
        assert stands(standing, step - 1)
        assert not stands(standing, step - 1, calm=False), "it is over"
    standing.take(SLOTS, ALL[::-1], step=step, calm=calm)
    assert not stands(standing, step + HOLD), "another choice begins anew"


def test_who_pauses_may_have_news_so_a_mixed_choice_holds_no_longer() -> None:
    standing = Standing()
    for step in (0, 4, 8):
        standing.take(SLOTS, DEPTHS, step=step, calm=True)
        assert (standing.held(SLOTS, ROOM, step=step + 3, calm=True) == DEPTHS).all()
        assert not stands(standing, step + HOLD)


def test_no_drafts_are_no_choice_that_holds() -> None:
    standing = Standing()
    standing.take(SLOTS, DEPTHS, step=0, calm=False)
    standing.take(SLOTS, np.zeros_like(DEPTHS), step=1, calm=False)
    assert not stands(standing, 2)


def test_a_pause_stands_until_there_is_news_or_it_is_time_to_look() -> None:
    standing = Standing()
    assert standing.look_in(5) == 0
    standing.pause(SLOTS, step=5, seconds=0.01, hopeless=True)
    assert standing.pauses(SLOTS, step=5 + LAST_GAP - 1)
    assert not standing.pauses(SLOTS, step=5 + LAST_GAP)
    assert not standing.pauses(SLOTS[:1], step=6)
    assert standing.look_in(6) == LAST_GAP - 1
    standing.news()
    assert not standing.pauses(SLOTS, step=6)
    assert standing.look_in(6) == 0


def test_a_hopeless_pause_is_looked_at_later_while_steps_take_what_they_took() -> None:
    standing = Standing()
    standing.pause(SLOTS, step=0, seconds=0.01, hopeless=True)
    standing.rested(20, 0.0105)
    assert standing.look_in(20) == PAUSE
    standing.rested(20, 0.013)
    assert standing.look_in(40) == PAUSE - 20, "it takes longer"
    standing.rested(1000, 0.01)
    assert standing.look_in(40) == LONGEST_PAUSE - 40
    standing.pause(SLOTS, step=0, seconds=0.01, hopeless=False)
    standing.rested(20, 0.01)
    assert standing.look_in(20) == PAUSE - 20
