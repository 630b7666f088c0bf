# SPDX-License-Identifier: Apache-2.0
"""``_propose`` as the real runner calls it, on padded batches made by hand."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.config import CUDAGraphMode
from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from tests.ascend.inside.padded_host import PaddedHost
from tests.unit import tiny_draft as tiny
from tests.unit.serving import Host, Shape

SHAPE = Shape()
#: Given by the padded host itself.
OURS = {
    "target_token_ids", "target_positions", "target_hidden_states", "next_token_ids",
    "token_indices_to_sample", "common_attn_metadata", "num_rejected_tokens_gpu",
}  # fmt: skip


def keywords_of_the_call() -> set[str]:
    """The keywords with which the real runner calls its EAGLE drafter."""
    source = textwrap.dedent(inspect.getsource(NPUModelRunner.propose_draft_token_ids))
    (call,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.drafter._propose"
    )
    assert not call.args, "the drafter is called with keywords only"
    return {str(keyword.arg) for keyword in call.keywords}


def texts(seed: int, *lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, tiny.VOCAB, size=n).tolist() for n in lengths]


def both(shape: Shape = SHAPE, **options: Any) -> tuple[Host, PaddedHost]:
    """The same engine twice, one handing over unpadded batches to the cycle itself."""
    plain, padded = Host(shape), PaddedHost(shape, **options)
    rest = keywords_of_the_call() - OURS
    padded.other_keywords = dict.fromkeys(rest)
    return plain, padded


def run_both(
    hosts: tuple[Host, PaddedHost], work: list[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """One step of the requests with these numbers, in both engines; their drafts."""
    plain, padded = (
        host.step([(host.requests[number], amount) for number, amount in work])[1] for host in hosts
    )
    return plain, padded


def join(hosts: tuple[Host, PaddedHost], name: str, text: list[int], prompt: int) -> None:
    for host in hosts:
        host.join(name, text, prompt)


def test_the_runner_gives_what_we_read_and_nothing_its_drafter_would_not_take() -> None:
    given = keywords_of_the_call()
    assert given > OURS
    theirs = inspect.signature(AscendEagleProposer._propose).parameters
    assert given <= set(theirs)
    assert {n for n, p in theirs.items() if p.default is p.empty} - {"self"} <= given


@pytest.mark.parametrize("bnsd", [False, True], ids=["BSND", "BNSD"])
def test_padded_batches_draft_what_unpadded_ones_do(bnsd: bool) -> None:
    hosts = both(bnsd=bnsd)
    plain, padded = hosts
    for number, (text, prompt) in enumerate(zip(texts(1, 140, 130), (70, 90), strict=True)):
        join(hosts, f"r{number}", text, prompt)
    # Prefill in chunks, the second request a step behind; past the budget of 64 tokens each.
    for work in ([(0, 33)], [(0, 37), (1, 50)], [(0, 2), (1, 21)], [(0, 0), (1, 19)]):
        ours, theirs = run_both(hosts, work)
        assert ours == theirs
    assert all(theirs), "both draft by now"
    total = 0
    for accepted in ((1, 3), (0, 0), (3, 2), (2, 0), (0, 3), (1, 1)):
        ours, theirs = run_both(hosts, list(enumerate(accepted)))
        assert ours == theirs
        assert all(theirs)
        total += sum(padded.rejected)
        assert plain.policy.observed == padded.policy.observed
    assert total > 5, "rejected rows were in the batches"
    assert padded.inner.counters.retrievals > 0
    assert padded.inner.faults.total == 0


def test_the_call_of_the_older_release_has_no_depth() -> None:
    hosts = both()
    del hosts[1].other_keywords["num_speculative_tokens"]
    join(hosts, "r", texts(8, 60)[0], 20)
    ours, theirs = run_both(hosts, [(0, 20)])
    assert ours == theirs != [[]]


def test_rejected_rows_are_not_written() -> None:
    hosts = both()
    join(hosts, "r", texts(2, 60)[0], 20)
    run_both(hosts, [(0, 20)])
    run_both(hosts, [(0, 1)])
    padded = hosts[1]
    assert padded.rejected == [2]
    (request,) = padded.requests
    for pages in padded.pair:
        rows = pages[request.blocks].flatten(0, 1).isnan().flatten(1)
        assert not rows[: request.computed].any()
        assert rows[request.computed :].all()


def test_the_token_after_a_chunk_is_the_prompts_own() -> None:
    seen: list[list[int]] = []
    hosts = both()
    inner = hosts[1].inner
    run = inner.run

    def note(batch: Any) -> Any:
        seen.append(batch.token_ids.tolist())
        return run(batch)

    inner.run = note  # type: ignore[method-assign]
    (text,) = texts(3, 80)
    join(hosts, "r", text, 50)
    run_both(hosts, [(0, 30)])
    # The host's own method says the prompt's last token here.
    assert text[30] != text[49]
    assert seen == [text[1:31]]


def test_steps_without_drafts_rest() -> None:
    hosts = both()
    join(hosts, "r", texts(4, 90)[0], 20)
    run_both(hosts, [(0, 20)])
    for host in hosts:
        host.policy.by_slot[:] = 0
        host.policy.rest_steps = 3
    for _ in range(5):
        assert run_both(hosts, [(0, 0)]) == ([[]], [[]])
    for host in hosts:
        host.policy.by_slot[:] = SHAPE.depth
    steps = [run_both(hosts, [(0, 0)]) for _ in range(4)]
    assert all(ours == theirs for ours, theirs in steps)
    assert steps[-1][1] != [[]]
    assert hosts[1].policy.rested_steps == hosts[0].policy.rested_steps > 0


def test_a_fault_costs_the_step_its_drafts() -> None:
    _, host = both()
    request = host.join("r", texts(5, 60)[0], 20)
    host.step([(request, 20)])
    with host.fault("combine"):
        assert host.step([(request, 0)])[1] == [[]]
    assert host.inner.faults.total == 1
    assert host.step([(request, 0)])[1] == [[]], "its newest page is not trusted yet"


def test_what_was_sampled_must_be_known() -> None:
    _, host = both()
    request = host.join("r", texts(6, 60)[0], 20)
    host.step([(request, 20)])
    host.session.drafter.prepare_next_token_ids_padded = lambda *_: (torch.zeros(1), torch.ones(1))
    host.session._sampled = None
    assert host.step([(request, 0)])[1] == [[]]
    assert host.inner.faults.total == 1


@pytest.mark.parametrize(
    ("mode", "times"), [(CUDAGraphMode.NONE, 1), (CUDAGraphMode.FULL_DECODE_ONLY, SHAPE.depth)]
)
def test_recurrent_targets_are_never_without_a_draft(mode: CUDAGraphMode, times: int) -> None:
    _, host = both(hybrid=True, mode=mode)
    assert host.session.least_depth() == 1
    request, other = (host.join(f"r{i}", text, 20) for i, text in enumerate(texts(7, 60, 60)))
    host.step([(request, 20)])
    with host.fault("output"):
        drafts = host.step([(request, 0), (other, 10)])[1]
    last = request.text[request.known - 1]
    assert drafts == [[last] * times, []], "a request whose prefill goes on is sampled no token"


def test_depths_are_those_with_a_graph() -> None:
    captured = both(mode=CUDAGraphMode.FULL_DECODE_ONLY)[1].session
    assert captured.allowed_depths() == (0, SHAPE.depth)
    recurrent = both(mode=CUDAGraphMode.FULL_DECODE_ONLY, hybrid=True)[1].session
    assert recurrent.allowed_depths() == (SHAPE.depth,)
    for mode in (CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE):
        assert both(mode=mode)[1].session.allowed_depths() is None


def test_drafts_of_different_length_reach_the_scheduler() -> None:
    runner = object.__new__(NPUModelRunner)
    runner.num_spec_tokens, runner.use_async_scheduling = 3, False
    runner.drafter = object.__new__(AscendEagleProposer)
    runner.input_batch = SimpleNamespace(req_ids=["a", "b", "c"])
    runner._draft_token_ids = [[5, 6, 7], [], [8]]
    runner._copy_draft_token_ids_to_cpu(None)
    taken = runner.take_draft_token_ids()
    assert (taken.req_ids, taken.draft_token_ids) == (["a", "b", "c"], [[5, 6, 7], [], [8]])
