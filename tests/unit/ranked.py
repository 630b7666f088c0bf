# SPDX-License-Identifier: Apache-2.0
"""What runs in one of several rank processes: simulated serving, with what each step showed.

Nothing here waits for longer than the group's timeout: a rank that made other calls than the
others fails its process, and with it the test.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from diffspec.proposer.ranked_cycle import RankedCycle
from tests.unit.gloo_ranks import WHOLE, GlooRanks, Share
from tests.unit.serving import Host, Request, Row, Shape
from tests.unit.test_cycle import Serving

TIMEOUT = timedelta(seconds=20)


@dataclass
class Seen:
    """What a run showed: per step the drafts by request and context length, who had a fault, and
    whether drafting was over."""

    drafts: list[dict[tuple[str, int], list[int]]] = field(default_factory=list)
    broken: list[str | None] = field(default_factory=list)
    off: list[bool] = field(default_factory=list)


class RankedServing(Serving):
    """One rank's part of simulated serving, or all of it; no oracle."""

    def __init__(self, shape: Shape, seed: int = 0, *, share: Share = WHOLE) -> None:
        super().__init__(shape, seed)
        self.share, self.seen = share, Seen()
        self.host = Host(shape, seed=seed, share=share)
        self.pending_fault: tuple[str, int] | None = None
        host, cycle = self.host, self.host.cycle
        host._trip = self._trip  # type: ignore[method-assign]
        host._build()
        cycle = host.cycle
        masses, write = host.working_set.masses, host.canonical.write
        put = cycle._pending.put

        def tripping(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def tripped(*args: Any) -> Any:
                self._trip(name)
                return call(*args)

            return tripped

        host.working_set.masses = tripping("masses", masses)
        host.canonical.write = tripping("write", write)  # type: ignore[method-assign]
        cycle._pending.put = tripping("put", put)  # type: ignore[method-assign]
        if share.rank:

            def plan(*args: Any, **others: Any) -> Any:
                raise AssertionError("only rank 0 plans")

            host.policy.plan = plan  # type: ignore[method-assign]

    def leave(self, request: Request) -> None:
        self.host.cycle.flush()  # as a session does: pages change hands
        self.host.leave(request)

    def preempt(self, request: Request) -> None:
        self.host.cycle.flush()
        self.host.preempt(request)

    def step(
        self,
        *work: tuple[Request, int],
        fault: str | None = None,
        on: Sequence[int] = (),
        after: int = 0,
    ) -> list[list[int]]:
        """A step in which the call of ``fault`` number ``after`` fails on the ranks ``on``."""
        mine = fault if self.share.rank in on else None
        self.pending_fault = None if mine is None else (mine, after)
        rows, drafts = self._run(work, unreadable=mine == "batch")
        tripped = self.pending_fault is None and mine is not None
        self.pending_fault = None
        if self.share.ranks is not None:
            drafts = self._compare(drafts)
        for row, draft in zip(rows, drafts, strict=True):
            row.request.drafts = draft
        self.seen.drafts.append(
            {(row.request.name, row.length): d for row, d in zip(rows, drafts, strict=True)}
        )
        self.seen.broken.append(mine if tripped or mine == "batch" else None)
        self.seen.off.append(self.host.cycle.faults.gave_up)
        return drafts

    def _run(
        self, work: Sequence[tuple[Request, int]], *, unreadable: bool
    ) -> tuple[list[Row], list[list[int]]]:
        if not unreadable:
            return self.host.step(work)
        run = self.host.cycle.run

        def unusable(batch: Any) -> list[list[int]]:
            error = RuntimeError("injected: no batch")
            return self.host.cycle.unusable(len(batch.request_ids), batch.slots, error)

        self.host.cycle.run = unusable  # type: ignore[method-assign]
        try:
            return self.host.step(work)
        finally:
            self.host.cycle.run = run  # type: ignore[method-assign]

    def _compare(self, drafts: list[list[int]]) -> list[list[int]]:
        """All ranks made the same calls, the ones foreseen, and hold the same; returns rank 0's
        drafts, as a host does."""
        cycle, table = self.host.cycle, self.host.cycle.slots
        assert isinstance(cycle, RankedCycle)
        held = {
            "calls": list(cycle.collectives.issued),
            "holes": self.host.canonical.holes.nonzero().flatten().tolist(),
            "owners": table._owner,
            "rests": cycle._resting.left,
            "waiting": cycle._pending.count if cycle._pending else 0,
        }
        every: list[Any] = [None] * self.share.size
        dist.all_gather_object(every, (held, drafts))
        for other, _ in every:
            assert other == held
        return every[0][1]

    def _trip(self, name: str) -> None:
        if self.pending_fault is None or self.pending_fault[0] != name:
            return
        _, left = self.pending_fault
        self.pending_fault = (name, left - 1) if left else None
        if not left:
            raise RuntimeError(f"injected fault in {name}")


Script = Callable[[RankedServing], None]


def play(script: Script, shape: Shape, share: Share = WHOLE) -> Seen:
    """Run ``script`` and return what was seen."""
    torch.set_num_threads(1)
    serving = RankedServing(shape, share=share)
    script(serving)
    return serving.seen


def _rank(rank: int, size: int, folder: str, script: Script, shape: Shape, foresee: bool) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size, timeout=TIMEOUT
    )
    try:
        with _foreseeing(foresee):
            seen: Any = play(script, shape, Share(GlooRanks()))
    except BaseException:
        seen = traceback.format_exc()
    torch.save(seen, f"{folder}/{rank}")
    # What was seen is saved, and a thread of gloo's that still runs would abort an orderly exit.
    os._exit(0)


@contextmanager
def _foreseeing(on: bool) -> Any:
    """In good steps, too: the calls foreseen for a step are those it made."""
    run = RankedCycle.run

    def checked(self: RankedCycle, batch: Any) -> list[list[int]]:
        drafts = run(self, batch)
        assert self.collectives.issued == self.calls(batch)
        return drafts

    if on:
        RankedCycle.run = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        RankedCycle.run = run  # type: ignore[method-assign]


def play_on_ranks(size: int, folder: Path, script: Script, shape: Shape) -> list[Seen]:
    """:func:`play` on ``size`` processes; what each has seen."""
    folder.mkdir(exist_ok=True)
    mp.spawn(_rank, (size, str(folder), script, shape, True), nprocs=size)
    found = [torch.load(folder / str(rank), weights_only=False) for rank in range(size)]
    assert not [f for f in found if isinstance(f, str)], "\n".join(map(str, found))
    return found


def fault_at_random(serving: RankedServing, steps: int, faults: Sequence[str]) -> None:
    """Random serving in which now and then something fails on one rank or on all."""
    rng, quiet = np.random.default_rng(7), 0
    step = serving.step
    plan: dict[str, Any] = {}
    serving.step = lambda *work, **_: step(*work, **plan)  # type: ignore[method-assign]
    for _ in range(steps):
        plan.clear()
        if quiet > 5 and rng.random() < 0.4:
            ranks = [[0], [1], list(range(serving.share.size))][rng.integers(3)]
            fault, after = str(rng.choice(faults)), int(rng.integers(3))
            plan.update(fault=fault, on=ranks, after=after * (fault in ("output", "logits")))
            quiet = 0
        quiet += 1
        serving.change_depths()
        serving.random_step(batch=4)
