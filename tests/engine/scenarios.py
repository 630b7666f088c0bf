# SPDX-License-Identifier: Apache-2.0
"""What runs inside an engine process: one function per engine start, JSON in and out."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from diffspec.hosts.surface import HostError
from diffspec.hosts.vllm.session import DiffSpecSession
from diffspec.testbed.ablation import newest_chunks, silence_switch
from diffspec.testbed.offline import ON, OfflineEngine, eagle3
from diffspec.testbed.recall_prompts import make_recall_prompt

Prompts = Sequence[Sequence[int]]


def _diffspec(pair: str, k: int, **keys: Any) -> dict[str, Any]:
    # On these small models a draft costs as much as it saves: what is drafted must not depend on
    # how fast this machine is.
    return eagle3(f"{pair}/draft", k, **{**ON, "diffspec_adaptive_profile": False, **keys})


def _run(engine: OfflineEngine, prompts: Prompts, tokens: int, **more: Any) -> dict[str, Any]:
    before = engine.counters()
    answers = engine.generate(prompts, tokens, **more)
    counted = engine.counters() - before
    return {
        "tokens": [a.token_ids for a in answers],
        "drafts": counted.drafts,
        "per_position": counted.per_position,
    }


def target_only(
    target: str, batches: Sequence[Prompts], tokens: int, logprobs: int | None = None, **engine: Any
) -> list[list[dict[str, Any]]]:
    """Greedy answers of the target alone, batch by batch."""
    llm = OfflineEngine(target, **engine)
    return [
        [
            {"tokens": a.token_ids, "logprobs": [list(at.items()) for at in a.logprobs]}
            for a in llm.generate(prompts, tokens, logprobs=logprobs)
        ]
        for prompts in batches
    ]


def _record_drafts(engine: OfflineEngine) -> dict[str, list[list[int]]]:
    """Every row of drafts per request, in order, whoever proposes them."""
    runner, seen = engine.worker.model_runner, {}
    propose = runner.drafter.propose

    def recorded(*args: Any, **kwargs: Any) -> Any:
        drafts = propose(*args, **kwargs)
        rows = drafts if isinstance(drafts, list) else drafts.tolist()
        for request_id, row in zip(runner.input_batch.req_ids, rows, strict=False):
            seen.setdefault(request_id.split("-")[0], []).append(row)
        return drafts

    runner.drafter.propose = recorded
    return seen


def drafts_of(
    pair: str,
    prompts: Prompts,
    tokens: int,
    k: int,
    keys: dict[str, Any],
    samples: Prompts = (),
    **engine: Any,
) -> dict[str, Any]:
    """Greedy answers and all proposed drafts; stock EAGLE-3 (padded) when ``keys`` is empty.

    ``samples`` are then answered with two tokens at temperature 1.
    """
    speculative = _diffspec(pair, k, **keys)
    if not keys:
        del speculative["draft_context_policy"]
    llm = OfflineEngine(f"{pair}/target", speculative=speculative, **engine)
    seen = _record_drafts(llm)
    result = _run(llm, prompts, tokens)
    result["proposed"] = [rows for _, rows in sorted(seen.items(), key=lambda item: int(item[0]))]
    if samples:
        result["samples"] = _run(llm, samples, 2, temperature=1.0, seed=1)["tokens"]
    return result


def recall_small(
    pair: str, prompts: Prompts, tokens: int, k: int, keys: dict[str, Any], **engine: Any
) -> dict[str, Any]:
    """One DiffSpec engine through everything a small budget can show."""
    llm = OfflineEngine(
        f"{pair}/target",
        speculative=_diffspec(pair, k, **keys),
        enable_prefix_caching=True,
        **engine,
    )
    cycle = llm.session.cycle
    result: dict[str, Any] = {"buffers": _buffers(llm)}
    result["single"] = _run(llm, prompts[-1:], tokens)
    result["batch"] = _run(llm, prompts, tokens)
    result["cached"] = _run(llm, prompts, tokens)
    result["sampled"] = _run(llm, prompts, tokens, temperature=1.0)
    result["retrievals"] = cycle.counters.retrievals
    result["tap_calls"] = llm.session.tap.calls

    with newest_chunks(cycle.working_set):
        result["recent_only"] = _run(llm, prompts, tokens)
    with _unpadded(llm):
        result["unpadded"] = _run(llm, prompts, tokens)

    result["silent"] = _silent(llm, tokens)
    result["turnover"] = _turnover(llm)
    result["faults"] = _faults(llm, prompts, tokens)
    result["buffers_after"] = _buffers(llm)
    result["attached_twice"], result["left_behind"] = _attach_again_and_detach(llm)
    return result


@contextmanager
def _unpadded(llm: OfflineEngine) -> Iterator[None]:
    """Hand every batch over as the host does after running it in a larger full CUDA graph."""
    runner = llm.worker.model_runner
    build = runner._build_attention_metadata

    def unpadded(*args: Any, **kwargs: Any) -> Any:
        attention, batch = build(*args, **kwargs)
        return attention, batch.unpadded(batch.num_actual_tokens, batch.num_reqs)

    runner._build_attention_metadata = unpadded
    try:
        yield
    finally:
        del runner._build_attention_metadata


def _silent(llm: OfflineEngine, tokens: int) -> dict[str, Any]:
    """Answer with the drafter silenced, by prompts of its own: their rows are never written."""
    prompts = [make_recall_prompt(400 + 50 * i, seed=70 + i) for i in range(2)]
    tap, slots = llm.session.tap, llm.session.cycle.slots
    before = tap.calls
    with silence_switch(llm.session, lambda call: call()) as switch:
        switch(True)
        found = _run(llm, [p.prompt_ids for p in prompts], tokens)
    right = [list(p.continuation_ids)[:tokens] for p in prompts]
    return {**found, "right": right, "tapped": tap.calls - before, "slots_held": len(slots)}


def _attach_again_and_detach(llm: OfflineEngine) -> tuple[str, list[str]]:
    """What a second attach says, and which of our names stay on the host after detaching."""
    session = llm.session
    try:
        DiffSpecSession(session.drafter, session.runner, session.settings, memory=1 << 30)
        said = ""
    except HostError as error:
        said = str(error)
    layer = session.tap.impl
    session.detach()
    host = [*vars(session.drafter), *vars(layer)]
    ours = {"propose", "prepare_inputs", "prepare_next_token_ids_cpu", "load_model", "dummy_run"}
    return said, [name for name in host if name in ours | {"forward"} or "diffspec" in name]


def _turnover(llm: OfflineEngine) -> dict[str, Any]:
    """50 short requests of many lengths, 10 at a time, with resident memory after each 10."""
    process, resident = psutil.Process(), []
    right = 0
    for start in range(0, 50, 10):
        prompts = [make_recall_prompt(300 + 7 * i, seed=i) for i in range(start, start + 10)]
        length = 8 + start % 7
        tokens = _run(llm, [p.prompt_ids for p in prompts], length)["tokens"]
        right += sum(
            ours == list(p.continuation_ids)[:length]
            for ours, p in zip(tokens, prompts, strict=True)
        )
        gc.collect()
        resident.append(process.memory_info().rss)
    # The host reports who finished in the step after.
    llm.generate([make_recall_prompt(300, seed=0).prompt_ids], 1)
    return {"resident": resident, "right": right, "slots_held": len(llm.session.cycle.slots)}


def _faults(llm: OfflineEngine, prompts: Prompts, tokens: int) -> dict[str, Any]:
    """Break drafting now and then, then ingestion once, then drafting for good."""
    cycle = llm.session.cycle
    head, calls = cycle.head, iter(range(10**9))
    best, project = head.best_tokens, head.project

    def sometimes(*args: Any) -> Any:
        if next(calls) % 11 == 0:
            raise RuntimeError("injected")
        return best(*args)

    head.best_tokens = sometimes
    drafting = _run(llm, prompts, tokens)
    head.best_tokens = best

    def once(*args: Any) -> Any:
        head.project = project
        raise RuntimeError("injected")

    head.project = once
    ingesting = _run(llm, prompts, tokens)
    healed = _run(llm, prompts, tokens)

    def always(*args: Any) -> Any:
        raise RuntimeError("injected")

    head.best_tokens = always
    broken = _run(llm, prompts, tokens)
    head.best_tokens = best
    return {
        "drafting": drafting,
        "ingesting": ingesting,
        "healed": healed,
        "broken": broken,
        "gave_up": cycle.faults.gave_up,
        "counts": dict(cycle.faults.counts),
    }


def _buffers(llm: OfflineEngine) -> dict[str, int]:
    return {**llm.session.cycle.working_set.nbytes, "tap": llm.session.tap.nbytes}


def recall_plain(
    pair: str, prompts: Prompts, tokens: int, k: int, keys: dict[str, Any], **engine: Any
) -> dict[str, Any]:
    """DiffSpec on a batch, with the page layout it found."""
    llm = OfflineEngine(f"{pair}/target", speculative=_diffspec(pair, k, **keys), **engine)
    scorer = llm.session.cycle.working_set.scorer
    return {
        **_run(llm, prompts, tokens),
        "block_size": scorer.block_size,
        "dtype": str(llm.session.cycle.working_set.working.k.dtype),
        "faults": dict(llm.session.cycle.faults.counts),
    }


def tensor_parallel(
    pair: str, prompts: Prompts, tokens: int, k: int, keys: dict[str, Any], **engine: Any
) -> dict[str, Any]:
    """Two ranks; with pinned depth, also what a fault on one of them alone does."""
    speculative = _diffspec(pair, k, **keys)
    llm = OfflineEngine(f"{pair}/target", speculative=speculative, tensor_parallel_size=2, **engine)
    result: dict[str, Any] = {}

    def note(way: str) -> None:
        before = llm.counters()
        result[way] = _run(llm, prompts, tokens)
        result[way]["accepted_share"] = (llm.counters() - before).accepted_share

    note("batch")
    if not speculative["diffspec_adaptive_profile"]:
        llm.llm.collective_rpc(_break_one_rank, args=(1,))
        note("one_broken")
        note("healed")
    result["ranks"] = llm.llm.collective_rpc(_rank_facts)
    return result


def _break_one_rank(worker: Any, broken: int) -> None:
    """Every eleventh draft step fails on one rank, three times in all."""
    if worker.rank != broken:
        return
    head, calls = worker.diffspec.cycle.head, iter(range(10**9))
    best = head.best_tokens

    def sometimes(*args: Any) -> Any:
        if next(calls) in (11, 22, 33):
            raise RuntimeError("injected")
        return best(*args)

    head.best_tokens = sometimes


def _rank_facts(worker: Any) -> dict[str, Any]:
    cycle = worker.diffspec.cycle
    return {
        "heads": [cycle.head.parts.kv_heads, cycle.working_set.working.k.shape[1]],
        "retrievals": cycle.counters.retrievals,
        "slots": cycle.slots.count,
        "gave_up": cycle.faults.gave_up,
        "faults": dict(cycle.faults.counts),
    }


def preempted(
    pair: str, prompts: Prompts, tokens: int, k: int, keys: dict[str, Any], **engine: Any
) -> dict[str, Any]:
    """More requests than the KV cache holds at once."""
    llm = OfflineEngine(f"{pair}/target", speculative=_diffspec(pair, k, **keys), **engine)
    result = _run(llm, prompts, tokens)
    result["preemptions"] = sum(
        int(m.value) for m in llm.llm.get_metrics() if m.name == "vllm:num_preemptions"
    )
    result["faults"] = dict(llm.session.cycle.faults.counts)
    return result


def resting(
    pair: str, prompts: Prompts, tokens: Sequence[int], k: int, keys: dict[str, Any], **engine: Any
) -> dict[str, Any]:
    """Requests that come and go while the policy stops drafting: rows wait, pages change hands.

    ``tokens`` has one length per prompt. ``strays`` counts rows written after a forward pass to
    pages that the scheduler has not given to the draft's layer for a running request.
    """
    keys = {"diffspec_adaptive_profile": True, **keys}
    llm = OfflineEngine(f"{pair}/target", speculative=_diffspec(pair, k, **keys), **engine)
    cycle, drafter = llm.session.cycle, llm.session.drafter
    scheduler = llm.llm.llm_engine.engine_core.engine_core.scheduler
    write, flush = cycle._write, cycle.flush
    counts = {"before": 0, "after": 0, "strays": 0}

    def recorded(token_ids: Any, features: Any, slots: Any) -> Any:
        owned = {
            block
            for request in scheduler.running
            for block in scheduler.kv_cache_manager.get_block_ids(request.request_id)[
                drafter.kv_cache_gid
            ]
        }
        pages = (slots // cycle._canonical.block_size).tolist()
        counts["after"] += len(pages)
        counts["strays"] += sum(page not in owned for page in pages)
        return write(token_ids, features, slots)

    def before_the_step() -> None:
        cycle._write = write
        counts["before"] += cycle._pending.count
        flush()
        cycle._write = recorded

    cycle._write, cycle.flush = recorded, before_the_step
    answers = llm.generate(prompts, list(tokens))
    groups = llm.worker.model_runner.kv_cache_config
    return {
        "tokens": [a.token_ids for a in answers],
        "written": counts,
        "rested": cycle.counters.zero["no_gain"],
        "drafts": llm.counters().drafts,
        "groups": len(groups.kv_cache_groups),
        "shared": max(len(tensor.shared_by) for tensor in groups.kv_cache_tensors),
        "faults": dict(cycle.faults.counts),
    }


def real_text(
    target: str,
    draft: str,
    prompts: Prompts,
    tokens: int,
    k: int,
    keys: dict[str, Any],
    **engine: Any,
) -> dict[str, Any]:
    """DiffSpec on a real model."""
    speculative = {**_diffspec("", k, **keys), "model": draft}
    llm = OfflineEngine(target, speculative=speculative, **engine)
    result = _run(llm, prompts, tokens)
    result["retrievals"] = llm.session.cycle.counters.retrievals
    return result
