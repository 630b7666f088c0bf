# SPDX-License-Identifier: Apache-2.0
"""Who owns which slot."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from diffspec.proposer.slots import NOTHING, SlotTable

SLOTS = 3


class SlotMachine(RuleBasedStateMachine):
    """Requests come, draft and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(SLOTS)
        self.owned: dict[str, int] = {}
        self.batch: list[str] = []

    @rule(
        batch=st.lists(st.sampled_from("abcdef"), unique=True, max_size=6),
        wanted=st.lists(st.booleans(), min_size=6, max_size=6),
    )
    def look_up(self, batch: list[str], wanted: list[bool]) -> None:
        self.batch = batch
        self.check(batch, wanted[: len(batch)])

    @precondition(lambda self: self.batch)
    @rule(wanted=st.booleans())
    def look_up_again(self, wanted: bool) -> None:
        self.check(self.batch, [wanted] * len(self.batch))

    def check(self, batch: list[str], wanted: list[bool]) -> None:
        slots = self.table.of(batch, np.array(wanted, dtype=bool))
        assert slots.dtype == np.int64
        assert slots.shape == (len(batch),)
        for request, slot, want in zip(batch, slots.tolist(), wanted, strict=True):
            if request in self.owned:
                assert slot == self.owned[request]
            elif want and len(self.owned) < SLOTS:
                # Low slots first, and a new owner starts with nothing.
                assert slot == min(set(range(SLOTS)) - set(self.owned.values()))
                assert self.table.end[slot] == NOTHING
                assert self.table.rows[slot] == self.table.steps[slot] == 0
                self.owned[request] = slot
                self.table.end[slot], self.table.rows[slot], self.table.steps[slot] = 9, 9, 9
            else:
                assert slot == -1

    @rule(request=st.sampled_from("abcdefg"))
    def release(self, request: str) -> None:
        slot = self.owned.pop(request, -1)
        assert self.table.release(request) == slot
        assert slot < 0 or self.table.end[slot] == NOTHING

    @rule(request=st.sampled_from("abcdefg"))
    def drop(self, request: str) -> None:
        before = self.table.end.copy()
        self.table.drop(request)
        slot = self.owned.get(request, -1)
        assert slot < 0 or self.table.end[slot] == NOTHING
        others = np.arange(SLOTS) != slot
        assert (self.table.end[others] == before[others]).all()

    @rule()
    def drop_all(self) -> None:
        self.table.drop_all()
        assert (self.table.end == NOTHING).all()

    @invariant()
    def owners_are_counted(self) -> None:
        assert len(self.table) == len(self.owned)
        assert len(set(self.owned.values())) == len(self.owned)


TestSlots = SlotMachine.TestCase
TestSlots.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
