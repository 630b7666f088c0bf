# SPDX-License-Identifier: Apache-2.0
"""The demo's picture and what is written beside it."""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from diffspec.cli import demo, picture
from diffspec.cli.arms import DIFFSPEC, EAGLE3, EAGLE3_LONG, TARGET_ONLY
from diffspec.cli.machine import machine
from diffspec.cli.main import app
from diffspec.cli.progress import Reporter

PNG = b"\x89PNG\r\n\x1a\n"
FOUR = (TARGET_ONLY, EAGLE3_LONG, EAGLE3, DIFFSPEC)
THREE = (TARGET_ONLY, EAGLE3, DIFFSPEC)


def rows(arms: tuple[str, ...], lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each length and arm; the speed tells which."""
    return [
        {
            "arm": arm,
            "prompt_tokens": length,
            "decode_tokens_per_s": length / 100 + i,
            "acceptance_length": None if arm == TARGET_ONLY else 1 + i / 4,
        }
        for length in lengths
        for i, arm in enumerate(arms)
    ]


@pytest.fixture
def document() -> dict[str, Any]:
    """As the full form writes it, as far as the picture reads it."""
    return {
        "diffspec": "1.2.3",
        "machine": "2 CPU cores, Some Processor",
        "versions": {"vllm": "9.8.7"},
        "failures": [],
        "recall": {
            "num_speculative_tokens": 5,
            "draft_window": 2048,
            "long_draft_window": 40960,
            "rows": rows(FOUR, (2048, 8192, 16384)),
        },
        "text": {
            "num_speculative_tokens": 3,
            "dtype": "float32",
            "rows": rows(THREE, (1500, 4000, 7000)),
        },
    }


def words(figure: Any) -> str:
    return figure.get_suptitle() + figure.get_supxlabel()


def test_each_arm_is_a_series_of_bars_over_the_prompt_lengths(document: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    left, right = picture.draw(document).axes
    for axes, section, arms, lengths in (
        (left, document["recall"], FOUR, ["2 048", "8 192", "16 384"]),
        (right, document["text"], THREE, ["1 500", "4 000", "7 000"]),
    ):
        assert [bars.get_label() for bars in axes.containers] == list(arms)
        assert [label.get_text() for label in axes.get_legend().get_texts()] == list(arms)
        assert [label.get_text() for label in axes.get_xticklabels()] == lengths
        for bars in axes.containers:
            mine = [r for r in section["rows"] if r["arm"] == bars.get_label()]
            assert [bar.get_height() for bar in bars] == [r["decode_tokens_per_s"] for r in mine]
            # Every bar stands nearest its own prompt length.
            middles = [bar.get_x() + bar.get_width() / 2 for bar in bars]
            assert [round(middle) for middle in middles] == [0, 1, 2]
        edges = sorted((b.get_x(), b.get_x() + b.get_width()) for c in axes.containers for b in c)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(edges))
        assert "tokens/s" in axes.get_ylabel()
        assert "tokens" in axes.get_xlabel()
    assert sorted(t.get_text() for t in left.texts) == sorted(
        ["", "1.25", "1.50", "1.75"] * 3  # target-only drafts nothing
    )


def test_an_arm_has_one_colour_in_both_panels(document: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    left, right = (
        {bars.get_label(): bars[0].get_facecolor() for bars in axes.containers}
        for axes in picture.draw(document).axes
    )
    assert len(set(left.values())) == len(FOUR)
    assert all(left[arm] == right[arm] for arm in THREE)


def test_the_picture_says_what_it_is(document: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    said = words(picture.draw(document))
    assert "illustration" in said
    assert "2 CPU cores, Some Processor" in said
    assert "vllm 9.8.7" in said
    assert "FAILED" not in said
    document["failures"] = ["something"]
    assert "FAILED" in words(picture.draw(document))


def test_without_the_text_there_is_one_panel(document: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    document["text"] = {"skipped": "not here"}
    document["recall"] |= {"long_draft_window": None, "rows": rows(THREE, (2048, 8192))}
    (axes,) = picture.draw(document).axes
    assert [len(bars) for bars in axes.containers] == [2, 2, 2]


def save(document: dict[str, Any], out: Path) -> str:
    said = io.StringIO()
    with Reporter(Console(file=said, width=200)) as reporter:
        demo.save(document, out)
        demo.draw(document, out, reporter)
    return said.getvalue()


def test_results_and_picture_are_written(document: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert save(document, tmp_path) == ""
    assert json.loads((tmp_path / "demo-results.json").read_text()) == document
    written = (tmp_path / "demo.png").read_bytes()
    assert written.startswith(PNG)
    assert len(written) > 10_000


def test_without_matplotlib_a_line_says_so_and_the_results_are_written(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    (tmp_path / "demo.png").write_bytes(b"an older run's")
    (line,) = save(document, tmp_path).splitlines()
    assert "no demo.png" in line
    assert "matplotlib" in line
    assert json.loads((tmp_path / "demo-results.json").read_text()) == document
    assert not (tmp_path / "demo.png").exists()


def test_a_picture_that_cannot_be_written_is_an_error_of_the_file(
    document: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(FileNotFoundError):
        picture.write_picture(document, tmp_path / "nowhere" / "demo.png")


def test_the_machine_is_its_cores_and_its_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor : 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name : Other\n"
    )
    cores = f"{len(os.sched_getaffinity(0))} CPU cores, "
    assert machine(tmp_path / "cpuinfo") == f"{cores}Some CPU @ 2 GHz"
    assert machine(tmp_path / "none").startswith(cores)


@pytest.fixture
def command(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of the command, whose servers are replaced by what they would have answered."""
    full = {"per_position_acceptance": [], "first_difference": None, "reference": TARGET_ONLY}
    full |= {"generated_tokens": 9, "ratio": 1.0, "time_to_first_token_s": 0.5}
    full |= {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
    recall = document["recall"] | {"rows": [full | row for row in document["recall"]["rows"]]}
    outcome = demo.Outcome({"recall": recall, "text": {"skipped": "not here"}})
    monkeypatch.setattr(demo, "run_demo", lambda *_: outcome)
    return ["demo", "--json", "--out"]


def test_json_alone_is_printed_with_json(command: list[str], tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, [*command, str(tmp_path)])
    assert ran.exit_code == 0
    printed = json.loads(ran.stdout)
    assert printed == json.loads((tmp_path / "demo-results.json").read_text())
    assert "illustration" in printed["note"].lower()
    assert printed["failures"] == []


@pytest.mark.parametrize("form", [["--json"], []])
def test_a_drawing_error_costs_the_picture_alone(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    def fail(document: object, path: Path) -> None:
        raise RuntimeError("no usable\nfont")

    monkeypatch.setattr(picture, "write_picture", fail)
    ran = CliRunner().invoke(app, ["demo", *form, *command[2:], str(tmp_path)])
    assert ran.exit_code == 0
    assert DIFFSPEC in ran.stdout
    assert "no demo.png: RuntimeError: no usable font" in ran.stderr
    assert "Traceback" not in ran.output
    assert (tmp_path / "demo-results.json").exists()


def test_what_was_measured_is_printed_even_if_it_cannot_be_written(
    command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "demo-results.json").mkdir()
    ran = CliRunner().invoke(app, [*command, str(tmp_path)])
    assert ran.exit_code == 1
    assert len(json.loads(ran.stdout)["recall"]["rows"]) == 12
    assert "FAILED: results not written" in ran.stderr
    assert "Traceback" not in ran.output
