# SPDX-License-Identifier: Apache-2.0
"""`diffspec qualify` against real servers: DiffSpec, and the target alone beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diffspec.cli.client import Client
from diffspec.cli.qualify.asking import Asker
from diffspec.cli.qualify.endpoint import Endpoint
from diffspec.cli.serving import Server, serve
from diffspec.evidence.records import read
from diffspec.testbed.recall_pair import RecallPair
from diffspec.testbed.recall_prompts import make_recall_prompt
from tests.e2e.conftest import ENVIRONMENT, FLAGS

pytestmark = pytest.mark.e2e

QUICK = ("--lengths", "300,900", "--tokens", "32", "--repeats", "2", "--tie", "1e-4")


@pytest.fixture(scope="module")
def target_only(pair: RecallPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("logs") / "target.log"
    flags = (*FLAGS, "--enforce-eager")
    with serve(pair.target, log=log, args=flags, env=ENVIRONMENT) as running:
        yield running


@pytest.fixture(scope="module")
def text(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in which no four tokens come twice: what follows a passage is never in doubt."""
    document = make_recall_prompt(12_000, seed=5).prompt_ids[1:]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    with Client(server) as client:
        found = client.post("/detokenize", {"model": server.name, "tokens": document})
    path.write_text(found["prompt"], encoding="utf-8")
    return path


def qualify(*arguments: str) -> tuple[int, dict[str, str], str]:
    """Exit status, outcome by check from the printed record, and everything else printed."""
    done = subprocess.run(
        [sys.executable, "-m", "diffspec.cli.main", "qualify", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    record: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, {c["name"]: c["outcome"] for c in record["checks"]}, done.stderr


def test_a_served_pair_qualifies_against_its_target_alone(
    server: Server, target_only: Server, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "qualification.json"
    status, outcomes, told = qualify(
        *(server.url, "--target-only", target_only.url, "--text", str(text), *QUICK),
        *("--out", str(out), "--log", str(server.log), "--batch", "4"),
        *("--draft", "recall draft", "--checkpoint-sha256", "0" * 64),
    )
    assert (status, set(outcomes.values())) == (0, {"passed"}), told
    assert len(outcomes) == 8
    record = read(out)
    assert record.problems == ()
    assert record.data["function"] == {"status": "passed", "recovery": "passed"}
    assert record.data["pair"]["state"] == "compatible"
    figures = {
        (figure["arm"], figure["metric"], figure.get("statistic"))
        for measurement in record.data["measurements"]
        for figure in measurement["figures"]
    }
    for arm in ("DiffSpec", "target-only"):
        for statistic in ("P50", "P95"):
            assert (arm, "time to first token", statistic) in figures
            assert (arm, "request latency", statistic) in figures
    share = next(
        figure["value"]
        for measurement in record.data["measurements"]
        for figure in measurement["figures"]
        if figure["metric"] == "accepted share of draft tokens"
    )
    assert share >= 90  # the pair's drafts are right


def test_the_target_alone_does_not_qualify(
    server: Server, target_only: Server, text: Path, tmp_path: Path
) -> None:
    """The endpoints the wrong way round: one does not draft, the other is no reference."""
    status, outcomes, told = qualify(
        *(target_only.url, "--target-only", server.url, "--text", str(text), *QUICK),
        *("--out", str(tmp_path / "swapped.json"), "--batch", "1"),
    )
    assert status == 1, told
    assert {name for name, word in outcomes.items() if word == "failed"} == {
        "correctness",
        "draft loading",
    }


def test_the_servers_log_probabilities_are_read(server: Server, target_only: Server) -> None:
    """With drafts and without: the likeliest token is the one that was generated."""
    prompt = make_recall_prompt(500, seed=6)
    answers = []
    for who in (server, target_only):
        with Asker(Endpoint(who.url, who.name)) as client:
            answers.append(client.likeliest(prompt.prompt_ids, 6, 5))
    for answer in answers:
        assert [token for token, _ in answer] == prompt.continuation_ids[:6]
        for token, top in answer:
            assert len(top) == 5
            assert token == max(top, key=lambda t: top[t])
