# SPDX-License-Identifier: Apache-2.0
"""The session between vLLM's batches and the drafting cycle: vLLM's own classes, no engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.spec_decode.eagle import EagleProposer
from vllm.v1.worker.block_table import MultiGroupBlockTable

from diffspec.adaptive_depth.adaptive import AdaptiveDepth
from diffspec.adaptive_depth.limits import DepthLimits
from diffspec.compact_kv.pages import KeyPages
from diffspec.hosts.vllm import attached
from diffspec.hosts.vllm.query_tap import QueryTap
from diffspec.hosts.vllm.session import DiffSpecSession
from diffspec.proposer.batch import StepBatch
from diffspec.proposer.slots import NOTHING
from diffspec.settings import DiffSpecSettings
from tests.unit import tiny_draft as tiny
from tests.unit.conftest import ON
from tests.unit.naive import Recorder
from tests.unit.serving import Host, Shape

pytestmark = pytest.mark.usefixtures("one_thread")

DEPTH, HEADS, DIM = 3, 2, 4
ROWS = DEPTH + 1
CPU = torch.device("cpu")


class Clock:
    """Time that passes only where something is said to take long; in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now


class Cycle:
    """Keeps what it is given, and takes its time on the session's ``clock``."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.reports: list[float] = []
        self.rest_took: list[dict[str, float]] = []
        self.batches: list[StepBatch] = []
        self.resting = False
        self.rested: list[list[Any]] = []

    def rests(self, request_ids: list[str]) -> bool:
        return self.resting

    def flush(self) -> None:
        self.clock.now += 10

    def finished(self, request_id: str) -> None:
        self.clock.now += 100

    def numbers(self) -> dict[str, float]:
        self.reports.append(self.clock.now)
        self.clock.now += 1000
        return {}

    def timed_rest(self, **seconds: float) -> None:
        self.rest_took.append(seconds)

    def rest(self, *rows: torch.Tensor) -> bool:
        self.rested.append([row.tolist() for row in rows])
        self.clock.now += 5
        return True

    def run(self, batch: StepBatch) -> list[list[int]]:
        self.batches.append(batch)
        self.clock.now += 3
        return [[7]] * len(batch.request_ids)

    def timed(self, **seconds: float | None) -> None:
        self.seconds = seconds

    def unusable(self, count: int, slots: torch.Tensor, error: BaseException) -> Any:
        raise error


def make_session() -> DiffSpecSession:
    """A session on a drafter of vLLM's that has what the methods used here read."""
    drafter = object.__new__(EagleProposer)
    drafter.speculative_config = SimpleNamespace(num_speculative_tokens=DEPTH)
    drafter.token_arange_np = np.arange(64, dtype=np.int32)
    drafter.input_ids = torch.zeros(64, dtype=torch.int32)
    drafter.device, drafter.dtype = CPU, torch.float32
    batch = SimpleNamespace(req_ids=["a", "b", "c"], block_table=[None])
    runner = SimpleNamespace(max_model_len=1000, input_batch=batch)
    settings = DiffSpecSettings.parse(ON, num_speculative_tokens=DEPTH)
    return DiffSpecSession(drafter, runner, settings, memory=0)


def run_step(
    session: DiffSpecSession, starts: list[int], lengths: list[int], slots: torch.Tensor, rows: int
) -> CommonAttentionMetadata:
    """Run a step whose requests have at most ``rows`` rows each, so that the tap sees it."""
    row_starts = torch.tensor(starts, dtype=torch.int32)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    count = len(lengths)
    metadata = CommonAttentionMetadata(
        query_start_loc=row_starts,
        query_start_loc_cpu=row_starts,
        seq_lens=seq_lens,
        _seq_lens_cpu=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens,
        num_reqs=count,
        num_actual_tokens=len(slots),
        max_query_len=rows,
        max_seq_len=max(lengths),
        block_table_tensor=torch.arange(4 * count, dtype=torch.int32).view(-1, 4),
        slot_mapping=slots,
    )
    query = torch.arange(len(slots) * HEADS * DIM).float().view(-1, HEADS, DIM)
    attention = SimpleNamespace(forward=lambda *_: None)
    session._tap = QueryTap(
        SimpleNamespace(impl=attention), max_requests=count, rows_per_request=ROWS,
        heads=HEADS, head_dim=DIM, dtype=torch.float32, device=CPU,
    )  # fmt: skip
    attention.forward(None, query, None, None, None, metadata)
    return metadata


def padded_step(session: DiffSpecSession, lengths: list[int]) -> CommonAttentionMetadata:
    """Run a decoding step of the given requests in a full graph of one request more, and hand its
    batch over as the runner does."""
    count = len(lengths)
    starts = [*range(0, ROWS * count + 1, ROWS), ROWS * count]
    slots = torch.arange(ROWS * (count + 1)) + 500
    slots[ROWS * count :] = -1
    return run_step(session, starts, [*lengths, 0], slots, ROWS).unpadded(ROWS * count, count)


def single_rows(session: DiffSpecSession, lengths: list[int]) -> CommonAttentionMetadata:
    """Run a decoding step without drafts, one row of each request."""
    count = len(lengths)
    return run_step(session, list(range(count + 1)), lengths, torch.arange(count) + 500, 1)


def query_rows(batch: StepBatch) -> list[int]:
    """The rows of the step that the batch's queries were taken from."""
    return (batch.query[:, 0, 0] / (HEADS * DIM)).int().tolist()


@pytest.fixture
def session() -> DiffSpecSession:
    session = make_session()
    session._cycle = Cycle()  # type: ignore[assignment]
    return session


def test_a_batch_smaller_than_its_graph_keeps_its_lengths(session: DiffSpecSession) -> None:
    sampled = [[11, 12, 13, 14], [21], [31, 32]]
    drafter, batch = session.drafter, session.runner.input_batch
    metadata = padded_step(session, [104, 61, 13])
    assert metadata.seq_lens_cpu_upper_bound is None, "vLLM keeps them now: nothing to restore"
    next_ids = drafter.prepare_next_token_ids_cpu(sampled, {}, batch, {})
    metadata, kept = drafter.prepare_inputs(metadata, sampled, [DEPTH] * 3)
    assert kept.tolist() == [0, 1, 2, 3, 4, 8, 9]
    ids, features = 1000 + kept, kept.float().unsqueeze(-1)
    drafts = drafter.propose(DEPTH, ids, kept, features, next_ids, None, metadata, None)
    assert drafts == [[7]] * 3
    (given,) = session.cycle.batches  # type: ignore[attr-defined]
    assert given.lengths.tolist() == [104, 58, 11]
    assert given.row_starts.tolist() == [0, 4, 5, 7]
    assert given.accepted.tolist() == [3, 0, 1]
    assert given.drafted.tolist() == [3, 3, 3]
    assert given.token_ids.tolist() == [1001, 1002, 1003, 14, 21, 1009, 32]
    assert given.slots.tolist() == [500, 501, 502, 503, 504, 508, 509]
    assert given.features[:, 0].tolist() == kept.tolist()
    assert query_rows(given) == [3, 4, 9]
    assert given.draft_table.tolist() == torch.arange(12).view(3, 4).tolist()


def test_so_does_one_without_drafts(session: DiffSpecSession) -> None:
    sampled = [[11], [21], [31]]
    drafter, batch = session.drafter, session.runner.input_batch
    metadata = padded_step(session, [104, 61, 13])
    next_ids = drafter.prepare_next_token_ids_cpu(sampled, {}, batch, {})
    rows = torch.arange(12)
    drafter.propose(DEPTH, rows, rows, rows.unsqueeze(-1), next_ids, None, metadata, None)
    (given,) = session.cycle.batches  # type: ignore[attr-defined]
    assert given.lengths.tolist() == [104, 61, 13]
    assert given.row_starts.tolist() == [0, 4, 8, 12]
    assert given.drafting.all()
    assert not given.drafted.any()
    assert not given.accepted.any()
    assert query_rows(given) == [3, 7, 11]


@pytest.mark.parametrize("resting", [False, True])
@pytest.mark.parametrize("sampled", [[[11], [21], [31]], [[11], [], [31]]])
def test_a_step_of_single_rows_may_rest(
    session: DiffSpecSession, resting: bool, sampled: list[list[int]]
) -> None:
    drafter, batch = session.drafter, session.runner.input_batch
    cycle = session.cycle
    cycle.resting = resting  # type: ignore[attr-defined]
    metadata = single_rows(session, [104, 61, 13])
    next_ids = drafter.prepare_next_token_ids_cpu([s or [9] for s in sampled], {}, batch, {})
    session._sampled = sampled
    rows = torch.arange(3)
    drafts = drafter.propose(DEPTH, rows, rows, rows.unsqueeze(-1), next_ids, None, metadata, None)
    if resting and all(sampled):
        assert drafts == [[], [], []]
        assert cycle.rested == [[[11, 21, 31], [[0], [1], [2]], [500, 501, 502]]]  # type: ignore[attr-defined]
        assert not cycle.batches  # type: ignore[attr-defined]
    else:
        assert drafts == [[7]] * 3
        assert not cycle.rested  # type: ignore[attr-defined]


class Told:
    """Stands in for the channel: only whether it is open is asked."""

    open = True

    def write(self, snapshot: dict[str, float]) -> None:
        assert snapshot == {}


def scheduled(*finished: str, tokens: int) -> SchedulerOutput:
    """What the scheduler says before a step of so many tokens."""
    output = SchedulerOutput.make_empty()
    output.finished_req_ids, output.total_num_scheduled_tokens = set(finished), tokens
    output.preempted_req_ids = set()
    return output


@pytest.fixture
def clock(session: DiffSpecSession, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The session's clock; its numbers are asked for, as where there is a channel."""
    clock = Clock()
    monkeypatch.setattr(attached, "time", clock)
    session._cycle = Cycle(clock)  # type: ignore[assignment]
    session.telemetry = Told()  # type: ignore[assignment]
    return clock


@pytest.mark.parametrize("resting", [False, True])
def test_what_is_done_before_a_step_is_not_the_targets_time(
    session: DiffSpecSession, clock: Clock, resting: bool
) -> None:
    drafter, batch, cycle = session.drafter, session.runner.input_batch, session.cycle
    cycle.resting = resting  # type: ignore[attr-defined]
    for _ in range(2):
        clock.now += 0.5  # the host schedules
        session.before_step(scheduled("gone", tokens=3))
        clock.now += 7  # the target verifies
        metadata = single_rows(session, [104, 61, 13])
        sampled = [[11], [21], [31]]
        next_ids = drafter.prepare_next_token_ids_cpu(sampled, {}, batch, {})
        session._sampled = sampled
        rows = torch.arange(3)
        drafter.propose(DEPTH, rows, rows, rows.unsqueeze(-1), next_ids, None, metadata, None)
    assert len(cycle.reports) == 2  # type: ignore[attr-defined]
    if resting:
        took = cycle.rest_took  # type: ignore[attr-defined]
        assert took == [{"verify": 7, "propose": 5}] * 2
    else:
        assert cycle.seconds == {"verify": 7, "propose": 3, "gap": 0.5}  # type: ignore[attr-defined]


def test_a_preempted_request_keeps_what_it_has_shown(session: DiffSpecSession) -> None:
    host = Host(Shape(slots=2))
    session._cycle = cycle = host.cycle
    cycle.policy = policy = AdaptiveDepth(2, DepthLimits(DEPTH))
    slots = np.array([0])
    for name in ("a", "b"):
        text = list(range(tiny.VOCAB)) * 4
        request = host.join(name, text[:150], 40)
        host.step([(request, 40)])
        accepted = 3 if name == "a" else 0
        for _ in range(12):
            host.step([(request, accepted)])
    assert cycle.slots.owners() == ["a", "b"]
    before = policy.acceptance.rates(slots)
    assert before[0, 0] > policy.acceptance.rates(np.array([1]))[0, 0]

    def told(**said: set[str]) -> SchedulerOutput:
        output = scheduled(*said.get("finished", ()), tokens=1)
        output.preempted_req_ids = said.get("preempted", set())
        output.scheduled_cached_reqs.resumed_req_ids = said.get("resumed", set())
        return output

    session.before_step(told(preempted={"a"}))
    session.before_step(told(resumed={"a"}))
    assert cycle.slots.end.tolist()[0] == NOTHING, "its working cache is void"
    assert cycle.slots.end[1] > 0
    assert (policy.acceptance.rates(slots) == before).all()
    session.before_step(told(finished={"a"}))
    assert policy.acceptance.rates(slots)[0, 0] < before[0, 0]


def test_numbers_are_reported_soon_and_not_for_every_request(
    session: DiffSpecSession, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycle, at = session.cycle, clock.now
    monkeypatch.setattr(cycle, "finished", lambda _: None)
    monkeypatch.setattr(cycle, "flush", lambda: None)
    monkeypatch.setattr(cycle, "numbers", lambda: cycle.reports.append(clock.now) or {})  # type: ignore[attr-defined, func-returns-value]

    def run(*finished: str, after: float, tokens: int = 8) -> list[float]:
        """Steps so long after the last; when numbers were reported since the first, rounded."""
        clock.now += after
        session.before_step(scheduled(*finished, tokens=tokens))
        return [round(when - at, 3) for when in cycle.reports]  # type: ignore[attr-defined]

    assert run(after=0) == [0.0], "the first step"
    for _ in range(9):
        assert run(after=0.1) == [0.0], "nothing has ended"
    assert run(after=0.15) == [0.0, 1.05]
    for _ in range(20):  # one ends in each step of 10 ms
        found = run("gone", after=0.01)
    assert found == [0.0, 1.05, 1.16]
    assert run(after=0.03) == [0.0, 1.05, 1.16, 1.28], "the last one, while others go on"
    assert run(after=0.9) == [*found, 1.28]
    found = run("gone", after=0.01, tokens=0)
    assert found[-1] == 2.19, "nothing else runs that would come back to it"
    assert run(after=0.01, tokens=0) == found


def test_nothing_leaves_propose(session: DiffSpecSession) -> None:
    lost: list[BaseException] = []

    def unusable(count: int, slots: torch.Tensor, error: BaseException) -> list[list[int]]:
        lost.append(error)
        return [[]] * count

    session.cycle.unusable = unusable  # type: ignore[method-assign]
    metadata = single_rows(session, [104, 61, 13])
    session.drafter.prepare_next_token_ids_cpu([[1], [2], [3]], {}, session.runner.input_batch, {})
    broken = torch.zeros(0)
    drafts = session.drafter.propose(DEPTH, broken, broken, broken, None, None, metadata, None)
    assert drafts == [[], [], []]
    assert len(lost) == 1


@pytest.mark.parametrize(("rows", "drafted"), [(20, 8), (5, 5)])
def test_the_largest_step_is_rehearsed_while_memory_is_measured(
    rows: int, drafted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, session = Host(Shape(slots=8)), make_session()
    session._cycle = cycle = host.cycle
    session.drafter.model = SimpleNamespace(
        model=SimpleNamespace(fc_input_size=tiny.AUX * tiny.TARGET_HIDDEN)
    )
    seen: list[Any] = []
    best, attend = cycle.head.best_tokens, host.working_set.working.attend

    def note_best(hidden: torch.Tensor, sure: list[torch.Tensor]) -> torch.Tensor:
        seen.append(len(hidden))
        return best(hidden, sure)

    def note_attend(*arguments: Any) -> torch.Tensor:
        seen.append((arguments[3], arguments[5]))
        return attend(*arguments)

    monkeypatch.setattr(cycle.head, "best_tokens", note_best)
    monkeypatch.setattr(host.working_set.working, "attend", note_attend)
    monkeypatch.setattr(cycle, "_canonical", None)
    with Recorder() as before:
        session.dummy_run(rows, use_cudagraphs=False, is_graph_capturing=False)
    assert seen == [(host.shape.budget, -1), drafted]
    assert "aten.index_copy_.default" in before.operations, "no rebuild"
    for part in (host.working_set.working.k, host.working_set.working.v):
        assert not part.any()

    cycle.bind(host.canonical)
    session.dummy_run(rows)
    assert len(seen) == 2


def test_pages_are_those_of_the_draft_groups_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # A recurrent target: blocks of 1536 tokens for the scheduler, of which attention sees twelfths,
    # and the draft in a later group, for which the host left the whole block with the drafter.
    block, page, pages = 1536, 128, 24
    host, session = Host(Shape(page=page, blocks=pages, slots=2)), make_session()
    session._cycle, drafter = host.cycle, session.drafter
    monkeypatch.setattr(host.cycle, "_canonical", None)
    draft = torch.zeros(pages, 2, page, tiny.KV_HEADS, tiny.DIM)
    layers = {"draft": SimpleNamespace(kv_cache=draft), "target": SimpleNamespace()}
    drafter.vllm_config = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context=layers),
        model_config=SimpleNamespace(dtype=torch.float32),
    )
    drafter._draft_attn_layer_names = {"draft"}
    drafter.block_size, drafter.kv_cache_gid, session._scored = block, 1, "target"
    session.runner.input_batch.block_table = MultiGroupBlockTable(
        max_num_reqs=2, max_num_batched_tokens=64, pin_memory=False, device=CPU,
        block_sizes=[block, block], kernel_block_sizes=[block, page], max_num_blocks=[4, 4],
    )  # fmt: skip
    spec = FullAttentionSpec(
        block_size=block, num_kv_heads=tiny.KV_HEADS, head_size=tiny.DIM, dtype=torch.float32
    )
    groups = [KVCacheGroupSpec(["recurrent"], spec), KVCacheGroupSpec(["target", "draft"], spec)]
    read = host.working_set.scorer._pages
    assert isinstance(read, KeyPages)
    asked: list[int] = []

    def target_pages(layer: Any, block_size: int) -> KeyPages:
        asked.append(block_size)
        return read

    monkeypatch.setattr(session, "target_pages", target_pages)
    session.bind_pages(KVCacheConfig(pages // 12, [], groups))
    canonical = session.cycle._canonical
    assert canonical is not None
    assert (canonical.block_size, canonical.num_blocks, asked) == (page, pages, [page])
    # The rows of a slot lie in the page that the slot names.
    slots = torch.tensor([5 * page + 3])
    canonical.write(
        slots, torch.ones(1, tiny.KV_HEADS, tiny.DIM), torch.ones(1, tiny.KV_HEADS, tiny.DIM)
    )
    assert torch.nonzero(draft.flatten(1).any(1)).tolist() == [[5]]
    assert session._draft_group == session._target_group == 1
