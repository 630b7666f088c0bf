# SPDX-License-Identifier: Apache-2.0
"""A qualification says what is broken about an endpoint, and never calls it good."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from diffspec.cli.main import app
from diffspec.cli.progress import Reporter
from diffspec.cli.qualify.agreement import Tally
from diffspec.cli.qualify.answers import replay
from diffspec.cli.qualify.asking import Asker
from diffspec.cli.qualify.bench import Bench, Plan, Row
from diffspec.cli.qualify.command import Options, plan_of
from diffspec.cli.qualify.counting import ranks_loaded
from diffspec.cli.qualify.endpoint import Endpoint
from diffspec.cli.qualify.matrix import matrix
from diffspec.cli.qualify.performance import Cell, Timing, percentiles, verdict
from diffspec.cli.qualify.prompts import CUE, Prompts
from diffspec.cli.qualify.record import Said, Seen, record, status
from diffspec.cli.qualify.text import ledger
from diffspec.evidence.pages import page
from diffspec.evidence.records import read
from diffspec.testbed.counters import SpecCounters
from tests.unit.broken_endpoint import Broken, serving

PLAN = Plan(
    lengths=(100, 160),
    longest=380,
    max_model_len=400,
    tokens=20,
    batch=2,
    repeats=1,
    tie=0.125,
    deadline_s=0.2,
)


@contextmanager
def bench(ours: Broken, target: Broken | None = None, plan: Plan | None = None) -> Iterator[Bench]:
    with (
        serving(ours) as url,
        serving(target or Broken()) as other,
        Asker(Endpoint(url, "m")) as client,
        Asker(Endpoint(other, "m")) as reference,
    ):
        quiet = Reporter(Console(file=io.StringIO()))
        yield Bench(client, reference if target else None, Prompts(client), plan or PLAN, quiet)


@pytest.fixture(autouse=True)
def log(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a server whose one worker loaded the draft; the plan's."""
    path = tmp_path_factory.mktemp("log") / "server.log"
    path.write_text("(Worker pid=1) INFO x.py:1 DiffSpec: 4 drafting slots; buffers a 1.0 MiB\n")
    monkeypatch.setitem(globals(), "PLAN", replace(PLAN, log=path))
    return path


def rows(ours: Broken, target: Broken | None = None, plan: Plan | None = None) -> dict[str, Row]:
    with bench(ours, target, plan) as made:
        return {row.name: row for row in matrix(made)}


def failed(found: dict[str, Row]) -> set[str]:
    return {name for name, row in found.items() if row.outcome != "passed"}


def alone() -> Broken:
    """A target-only endpoint."""
    return Broken(drafts=False, diffspec=False)


def test_a_good_endpoint_passes_every_row() -> None:
    assert failed(rows(Broken(), alone())) == set()


def test_other_tokens_than_the_targets_are_named() -> None:
    found = rows(Broken(wrong_at=7), alone())
    assert {"correctness", "concurrency", "long context"} <= failed(found)
    assert "counters" not in failed(found)
    detail = found["correctness"].detail
    assert "0 of 4 identical, 4 DIFFERENT" in detail
    assert "at token 8, logits 1 apart" in detail


@pytest.mark.parametrize(("gap", "passed"), [(0.125, True), (0.25, False)])
def test_a_difference_at_a_tie_is_reported_and_passes(gap: float, passed: bool) -> None:
    target = alone()
    target.gap = gap
    row = rows(Broken(wrong_at=7), target)["correctness"]
    assert (row.outcome == "passed") == passed
    assert ("a tie: logits 0.12 apart" in row.detail) == passed


@pytest.mark.parametrize(("gap", "passed"), [(0.3, True), (0.9, False)])
def test_what_the_target_itself_does_in_a_crowd_excuses_little(gap: float, passed: bool) -> None:
    # Both are right for as long as one request at a time is asked, and differ from then on.
    target = Broken(drafts=False, diffspec=False, right_for=2, wrong_at=7, gap=gap)
    with bench(Broken(right_for=2, wrong_at=7), target) as made:
        row = replay(made)
    assert (row.outcome == "passed") == passed
    assert "target-only itself changes between tokens" in row.detail
    assert f"2 of 6 identical, {'4 apart at a tie' if passed else '4 DIFFERENT'}" in row.detail
    assert "and 1 more" in row.detail


def test_without_a_target_nothing_excuses_a_change_in_a_crowd() -> None:
    ours = Broken(right_for=4, wrong_at=7, gap=0.3)
    with bench(ours) as made:
        assert replay(made).outcome == "failed"


def test_a_reference_that_speculates_proves_nothing() -> None:
    found = rows(Broken(), Broken())
    assert failed(found) == {"correctness"}
    assert "speculates itself" in found["correctness"].detail


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    found = rows(Broken(dies_after=5), alone())
    assert "5 of 20 tokens came" in found["correctness"].detail
    assert {"correctness", "capture and replay", "concurrency", "counters"} <= failed(found)


def test_every_row_is_reached_when_all_requests_fail() -> None:
    found = rows(Broken(fails=True), alone())
    assert failed(found) == set(found)
    assert len(found) == 8
    assert "HTTP 500: out of order" in found["correctness"].detail


def test_bad_requests_that_are_accepted_fail_recovery() -> None:
    found = rows(Broken(accepts_all=True), alone())
    assert failed(found) == {"exception recovery"}
    assert "0 of 7 bad requests refused" in found["exception recovery"].detail


def test_requests_that_never_end_fail_cancellation() -> None:
    found = rows(Broken(stuck=1), alone())
    assert failed(found) == {"cancellation"}
    assert "1 requests running or waiting afterwards" in found["cancellation"].detail


def test_counters_that_do_not_add_up_fail() -> None:
    row = rows(Broken(miscounts=9), alone())["counters"]
    assert row.outcome == "failed"
    assert "give more than 20 tokens" in row.detail


@pytest.mark.parametrize(("rested", "passed"), [(0, False), (1, True)])
def test_steps_that_are_missing_fail_unless_some_rested(rested: int, passed: bool) -> None:
    row = rows(Broken(lost=2, rested=rested), alone())["counters"]
    assert (row.outcome == "passed") == passed
    assert ("do not give 20 tokens" in row.detail) != passed


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Broken(diffspec=False), "DiffSpec is not at work there"),
        (Broken(drafts=False), "NOTHING was drafted"),
        (Broken(faults=3), "3 faults"),
    ],
)
def test_an_endpoint_without_working_drafts_fails(state: Broken, words: str) -> None:
    row = rows(state, alone())["draft loading"]
    assert row.outcome == "failed"
    assert words in row.detail


def test_without_a_log_nobody_saw_a_rank_load_the_draft() -> None:
    unseen = replace(PLAN, log=None)
    found = rows(Broken(), alone(), unseen)
    assert failed(found) == {"draft loading"}
    assert found["draft loading"].outcome == "not-run"
    assert "ranks not looked at: no --log" in found["draft loading"].detail
    assert status(found.values(), compared=True) == "unverified"
    assert rows(Broken(drafts=False), alone(), unseen)["draft loading"].outcome == "failed"


def test_a_rank_that_is_not_in_the_log_fails() -> None:
    row = rows(Broken(), alone(), replace(PLAN, ranks=2))["draft loading"]
    assert row.outcome == "failed"
    assert "1 of 2 ranks loaded the draft" in row.detail


LOG = """\
\x1b[0;36m(Worker_TP0 pid=11)\x1b[0;0m INFO x.py:1 DiffSpec: 4 drafting slots; buffers a 1.0 MiB
(Worker_TP1 pid=12) INFO x.py:1 DiffSpec: 4 drafting slots; buffers a 1.0 MiB
(Worker_TP1 pid=12) INFO x.py:1 DiffSpec: 4 drafting slots; buffers a 1.0 MiB
(Worker_TP2 pid=13) WARNING x.py:1 DiffSpec: memory for 3 drafting slots, --max-num-seqs is 4
(Worker_TP3 pid=14) INFO x.py:1 DiffSpec: 4 drafting slots; buffers a 1.0 MiB
"""


def test_ranks_are_counted_once_and_by_what_each_loaded(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG)
    assert ranks_loaded(log) == ["Worker_TP0 pid=11", "Worker_TP1 pid=12", "Worker_TP3 pid=14"]
    log.write_text("nothing of ours")
    assert ranks_loaded(log) == []


def test_prompts_have_the_length_asked_for_and_end_with_a_passage() -> None:
    with bench(Broken()) as made:
        prompt = made.prompt(300, 1)
        plain = Prompts(made.ours, ledger, plain=True).prompt(300, 1)
        assert made.prompt(300, 1) == prompt != made.prompt(300, 2)
    assert len(prompt) == len(plain) == 300
    assert prompt[0] == 1  # as the tokenizer begins
    cue = prompt[-CUE:]
    assert any(prompt[i : i + CUE] == cue for i in range(300 - CUE))
    assert not any(plain[i : i + CUE] == plain[-CUE:] for i in range(300 - CUE))


def cell(*latencies: tuple[float, float]) -> Cell:
    """Latencies of DiffSpec and of target-only, in seconds."""
    return Cell(100, tuple((Timing(0.1, a, 10.0), Timing(0.1, b, 10.0)) for a, b in latencies))


@pytest.mark.parametrize(
    ("latencies", "word", "words"),
    [
        ([(1, 1.5), (1, 1.4), (1, 1.6)], "beneficial", "compatible, faster: 1.50 times"),
        (
            [(2, 1), (2, 1.1), (2, 1.2)],
            "not-recommended-for-tested-cell",
            "compatible, not recommended as an acceleration: 0.55 times",
        ),
        ([(1, 1.01), (1, 0.99), (1, 1.0)], "neutral", "no faster and no slower"),
        ([(1, 2.0), (1, 0.5), (1, 1.2)], "inconclusive", "no clear difference"),
        ([(1, 2.0), (1, 2.0)], "inconclusive", "no clear difference"),
        ([], "inconclusive", "not compared"),
    ],
)
def test_the_verdict_in_words(latencies: list[tuple[float, float]], word: str, words: str) -> None:
    found = verdict([cell(*latencies)], works=True)
    assert found.word == word
    assert words in found.text


def test_a_fast_endpoint_that_fails_is_not_called_good() -> None:
    found = verdict([cell((1, 2), (1, 2), (1, 2))], works=False)
    assert found.word == "inconclusive"
    assert "does not work" in found.text
    assert "compatible" not in found.text


def test_percentiles_leave_out_what_was_not_seen() -> None:
    found = percentiles([Timing(1.0, 2.0, None), Timing(3.0, 4.0, 7.0)])
    assert found["time to first token"] == (2.0, pytest.approx(2.9))
    assert found["output throughput"] == (7.0, 7.0)


@pytest.mark.parametrize("outcome", ["passed", "failed"])
@pytest.mark.parametrize("compared", [True, False])
@pytest.mark.parametrize("digest", ["a" * 64, None])
def test_the_record_is_valid_and_claims_no_more_than_was_seen(
    outcome: str, compared: bool, digest: str | None, tmp_path: Path
) -> None:
    checks = [Row("correctness", "passed", "4 of 4"), Row("cancellation", outcome, "seen")]  # type: ignore[arg-type]
    cells = [cell((1, 2), (1, 2), (1, 2))] if compared else []
    seen = Seen(
        model="m",
        host_version="0.28.0",
        rows=checks,
        tally=Tally(same=4),
        spec=SpecCounters(4, 12, 3, (2, 1, 0)),
        cells=cells,
        verdict=verdict(cells, works=outcome == "passed"),
        compared=compared,
    )
    said = Said(draft="d", checkpoint_sha256=digest, release="0.1.0", hardware="four cards")
    made = record("q", PLAN, said, seen, datetime.date(2026, 1, 2))
    path = tmp_path / "q.json"
    path.write_text(json.dumps(made))
    assert read(path).problems == ()
    assert "what was seen" in page(read(path).data)
    good = outcome == "passed" and compared
    assert (made["function"]["status"] == "passed") == good
    assert (made["pair"]["state"] == "compatible") == (good and digest is not None)
    assert made["pair"]["recommended"] == (good and digest is not None)
    assert any("target-only" in line for line in made["not_verified_here"]) != compared


@pytest.mark.parametrize(
    ("told", "hosts", "unsaid"),
    [
        ({}, {"vLLM": "0.28.0"}, True),
        ({"vLLM-Ascend": "0.28.0rc1"}, {"vLLM": "0.28.0", "vLLM-Ascend": "0.28.0rc1"}, False),
        ({"vLLM": "0.25.1"}, {"vLLM": "0.28.0"}, False),
    ],
)
def test_the_record_names_the_hosts_that_were_told(
    told: dict[str, str], hosts: dict[str, str], unsaid: bool, tmp_path: Path
) -> None:
    nothing = verdict([], works=True)
    seen = Seen("m", "0.28.0", [], Tally(), SpecCounters(0, 0, 0, ()), [], nothing, False)
    made = record("q", PLAN, Said(hosts=told), seen, datetime.date(2026, 1, 2))
    path = tmp_path / "q.json"
    path.write_text(json.dumps(made))
    assert read(path).problems == ()
    assert {h["name"]: h["version"] for h in made["where"]["hosts"]} == hosts
    assert any("no --host" in line for line in made["not_verified_here"]) == unsaid


def test_the_longest_prompt_is_at_least_as_long_as_the_others() -> None:
    options = Options("http://h", None, None, Path("q.json"), quick=True, lengths=[100, 9000])
    assert plan_of(options, 20_000).longest == 9000


def test_a_log_that_goes_away_is_a_failed_row(log: Path) -> None:
    with bench(Broken(), alone()) as made:
        log.unlink()
        found = {row.name: row for row in matrix(made)}
    assert failed(found) == {"draft loading"}
    assert "server.log" in found["draft loading"].detail


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["qualify", *arguments])
    return result.exit_code, result.output


def test_the_command_ends_with_one_and_a_record_where_a_check_failed(tmp_path: Path) -> None:
    out = tmp_path / "q.json"
    with serving(Broken(wrong_at=3)) as url, serving(alone()) as other:
        code, output = invoke(
            *(f"{url}/v1/", "--target-only", other, "--out", str(out), "--lengths", "100,120"),
            *("--tokens", "16", "--batch", "1", "--repeats", "1"),
        )
    assert code == 1
    assert "does not work, see the failed checks" in output
    found = read(out)
    assert found.problems == ()
    assert found.data["function"] == {"status": "failed", "recovery": "failed"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "Upper Case.json"), "lower-case letters"),
        (("--model", "other"), "no 'other'"),
        (("--lengths", "390"), "leaves 272 for a prompt"),
        (("--log", "no-such.log"), "no-such.log"),
        (("--longest", "90", "--lengths", "100,120"), "--longest 90 is shorter than prompts of"),
        (("--host", "vLLM-Ascend"), "is no NAME=VERSION"),
        (("--host", "=0.28.0"), "is no NAME=VERSION"),
        (("--host", "vLLM-Ascend=new"), "is no NAME=VERSION"),
        (("--text", "no-such.txt"), "no-such.txt"),
    ],
)
def test_what_cannot_be_begun_ends_with_two(
    arguments: tuple[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(Broken()) as url:
        code, output = invoke(url, *arguments)
    assert code == 2
    assert words in output
    assert list(tmp_path.iterdir()) == []


def test_nobody_there_ends_with_two() -> None:
    code, output = invoke("http://127.0.0.1:9")
    assert code == 2
    assert "no answer from the server" in output


def test_an_address_that_is_none_ends_with_two() -> None:
    code, output = invoke("http://[no")
    assert code == 2
    assert output.startswith("diffspec qualify: ")


def test_an_endpoint_in_use_is_left_alone() -> None:
    with serving(Broken(stuck=2)) as url:
        code, output = invoke(url)
    assert code == 2
    assert "2 requests of others run there" in output
