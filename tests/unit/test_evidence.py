# SPDX-License-Identifier: Apache-2.0
"""Records hold the owner's figures, say no to what must not be said, and the pages follow them."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks import record as benchmark_record
from diffspec.evidence.pages import FOLDER, models, page, pages
from diffspec.evidence.records import CHECKOUT, Record, files, read, statements

HISTORICAL = CHECKOUT / "evidence" / "historical-ascend-910b2.json"
SAGE = CHECKOUT / "evidence" / "sage-mate-20260904-tp4-graph.json"

#: input, output, target-only and DiffSpec in decoded tokens/s, speed-up: as the owner states them.
NINE_CELLS = """
32K 1K 15.49 26.17 1.69
32K 2K 15.47 27.74 1.79
32K 4K 15.52 28.66 1.85
64K 1K 15.62 32.51 2.08
64K 2K 15.39 38.05 2.47
64K 4K 15.16 44.75 2.95
128K 1K 13.75 42.50 3.09
128K 2K 14.04 48.04 3.42
128K 4K 12.22 52.08 4.26
"""
#: DiffSpec P50 and P95, target-only P50 and P95.
WARM = {
    "time to first token": ("0.459 s", "0.469 s", "0.314 s", "0.333 s"),
    "request latency": ("0.744 s", "3.990 s", "0.400 s", "1.166 s"),
    "output throughput": (
        "14.00 tokens/s",
        "14.24 tokens/s",
        "47.72 tokens/s",
        "56.97 tokens/s",
    ),
}


def rows_of(text: str) -> list[list[str]]:
    """Cells of every Markdown table row."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def sage() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(SAGE.read_text(encoding="utf-8"))
    return data


def problems_of(data: object, folder: Path, name: str = SAGE.name) -> tuple[str, ...]:
    path = folder / name
    path.write_text(json.dumps(data), encoding="utf-8")
    return read(path).problems


def test_every_committed_record_is_valid() -> None:
    found = {path.name: read(path) for path in files()}
    assert {HISTORICAL.name, SAGE.name, "identity.json"} <= set(found)
    assert {name: r.problems for name, r in found.items() if r.problems} == {}
    assert found["identity.json"].kind == "benchmark"


def test_the_pages_are_current() -> None:
    wanted = pages(statements())
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert there == wanted, "run: python -m diffspec.evidence.pages"


def test_the_nine_historical_cells_are_the_owners() -> None:
    text = (FOLDER / "historical-ascend-910b2.md").read_text(encoding="utf-8")
    cells = [line.split() for line in NINE_CELLS.split("\n") if line]
    wanted = [
        [i, o, "decode throughput", f"{t} tokens/s", f"{d} tokens/s", f"{s}\N{MULTIPLICATION SIGN}"]
        for i, o, t, d, s in cells
    ]
    assert [row for row in rows_of(text) if row[0].endswith("K")] == wanted
    assert "not this release, not measured again here" in text
    for *_, target, ours, speed_up in cells:
        assert round(Decimal(ours) / Decimal(target), 2) == Decimal(speed_up)


def test_the_sage_mate_figures_are_the_owners() -> None:
    text = (FOLDER / "sage-mate-20260904-tp4-graph.md").read_text(encoding="utf-8")
    rows = rows_of(text)
    for metric, (p50, p95, target_p50, target_p95) in WARM.items():
        assert ["warm", f"{metric}, P50", p50, target_p50] in rows
        assert ["warm", f"{metric}, P95", p95, target_p95] in rows
    figures = {row[1]: row[2] for row in rows if len(row) == 4}
    assert figures["draft tokens"] == "534 tokens"
    assert figures["accepted draft tokens"] == "103 tokens"
    assert figures["accepted share of draft tokens"] == "19.29 %"
    assert (figures["compared"], figures["identical"]) == ("10 outputs", "9 outputs")
    assert round(Decimal(100 * 103) / 534, 2) == Decimal("19.29")
    facts = (
        "a57cefc45874197a24dd2a092cfd0d0f7d6a2f2cca156d09f2d2f4a56dc4e5be",
        "vLLM-HUST 0.28.1rc1.dev319, commit `762f85b3`",
        "vLLM-Ascend-HUST 0.25.1rc1, commit `4e57439e`",
        "| cudagraph capture sizes | [4, 8, 12, 16] |",
        "a context of 5 425 tokens",
        "**not-recommended-for-tested-cell**",
        "Pair: compatible, performance degraded, not\nrecommended.",
    )
    assert [fact for fact in facts if fact not in text] == []


def test_a_pair_is_compatible_only_through_a_record() -> None:
    row = (
        "| Qwen3.8-27B | VirVen/Qwen3.5-27B-EAGLE3-v2 | compatible, performance degraded, not reco"
    )
    assert row in models([read(SAGE)])
    assert "VirVen" not in models([read(HISTORICAL)])
    data = sage()
    data["pair"]["state"] = "incompatible"
    assert "VirVen" not in models([Record(SAGE, data, ())])


def test_drafts_of_another_vocabulary_are_listed_as_rejected() -> None:
    rows = rows_of(models(statements()))
    names = {row[1]: row[2] for row in rows if row[2] == "151 936"}
    assert set(names) == {"Qwen3-1.7B drafts", "Qwen3-8B drafts"}


def edit(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    """A change of one place; the value ``...`` removes it."""

    def change(data: Any) -> None:
        *way, last = path
        for step in way:
            data = data[step]
        if value is ...:
            del data[last]
        else:
            data[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit("verdict", "word", value="not-beneficial-in-tested-cell"), "$.verdict.word: "),
        (edit("kind", value="rumour"), "$.kind: 'rumour' is not one of"),
        (edit("kind", value=...), "$: 'kind' is a required property"),
        (edit("measured_by", value=" "), "$.measured_by = ' ': expected text that is not blank"),
        (edit("not_verified_here", value=[]), "$.not_verified_here: "),
        (edit("command", value=...), "$: 'command' is a required property"),
        (edit("date", value="4 September"), "expected a date, YYYY-MM-DD"),
        (edit("surprise", value=1), "'surprise' was unexpected"),
        (edit("measurements", 0, "figures", 0, "unit", value="tok/s"), "'tok/s' is not one of"),
        (edit("measurements", 0, "figures", 0, "unit", value=...), "'unit' is a required"),
        (edit("measurements", 0, "figures", 0, "value", value="0.459"), "is not of type 'number'"),
        (edit("models", "checkpoint_sha256", value=...), "'checkpoint_sha256' is a required"),
        (edit("models", "checkpoint_sha256", value="A57C"), "expected 64 hexadecimal digits"),
        (edit("where", "hosts", 0, "version", value="new"), "$.where.hosts[0].version"),
        (edit("function", "status", value="unverified"), "a compatible pair needs the word passed"),
        (edit("checks", 0, "outcome", value="failed"), "a failed check and function passed"),
        (edit("pair", "recommended", value=True), "only what was beneficial is recommended"),
        (edit("verdict", "word", value="beneficial"), "beneficial says that it was faster"),
        (edit("kind", value="historical"), "only a qualification judges a pair"),
        (edit("subject", "releases", value=["soon"]), "$.subject.releases[0]"),
        (edit("id", value="another-name"), "the file is called 'sage-mate-20260904-tp4-graph'"),
        (edit("measurements", 0, "source", value="hearsay"), "$.sources has owner, public-record"),
    ],
)
def test_what_a_record_must_not_say(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    data = sage()
    assert problems_of(data, tmp_path) == ()
    change(data)
    assert message in "\n".join(problems_of(data, tmp_path))


def test_a_historical_record_is_about_no_release(tmp_path: Path) -> None:
    data = json.loads(HISTORICAL.read_text(encoding="utf-8"))
    data["subject"]["releases"] = ["0.1.0"]
    found = problems_of(data, tmp_path, HISTORICAL.name)
    assert "a historical record is about no release" in "\n".join(found)


def test_a_figure_is_given_once(tmp_path: Path) -> None:
    data = sage()
    data["measurements"][1]["figures"].append(data["measurements"][0]["figures"][3])
    (found,) = problems_of(data, tmp_path)
    assert found == (
        "$.measurements: DiffSpec, request latency, P95 (requests warm) is given 2 times"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "benchmark", "kind": "historical"}', '"kind" is given twice in one object'),
        ('{"value": NaN}', "cannot be read: $.value = nan: not a number that JSON has"),
        ("{", "cannot be read: line 1, column 2: Expecting property name"),
        ("[]", "$: [] is not of type 'object'"),
        ("\xff", "cannot be read: 'utf-8' codec"),
    ],
)
def test_what_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    assert message in "\n".join(read(path).problems)


def test_a_missing_file_is_a_problem_and_no_files_an_error(tmp_path: Path) -> None:
    assert "No such file" in read(tmp_path / "none.json").problems[0]
    with pytest.raises(FileNotFoundError, match=r"no \*\.json in "):
        files([tmp_path])


def test_an_invalid_statement_stops_whatever_is_made_of_records(tmp_path: Path) -> None:
    problems_of(sage() | {"id": "x"}, tmp_path)
    with pytest.raises(ValueError, match="the file is called"):
        statements([tmp_path])


def test_numbers_keep_the_digits_they_were_written_with() -> None:
    text = page(read(SAGE).data)
    assert "14.00 tokens/s" in text
    assert "3.990 s" in text
    assert "1 output |" in text


def test_benchmarks_write_valid_records(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    benchmark_record.write(path, {"what": "a test", "cells": []})
    found = read(path)
    assert (found.problems, found.kind) == ((), "benchmark")


def test_a_benchmark_without_provenance_is_refused(tmp_path: Path) -> None:
    data = {"schema": "vllm-diffspec.evidence/v1", "kind": "benchmark", "what": "speed"}
    assert problems_of(data, tmp_path) == ("$: 'provenance' is a required property",)
