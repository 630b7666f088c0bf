# SPDX-License-Identifier: Apache-2.0
"""The demo's rendering, and what it says of input it cannot use."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from diffspec import __version__
from diffspec.cli import demo, realtext, report
from diffspec.cli.arms import DIFFSPEC, EAGLE3, TARGET_ONLY, Request, Result, three_arms
from diffspec.cli.client import Completion
from diffspec.cli.main import app
from diffspec.cli.progress import Reporter
from diffspec.testbed.counters import SpecCounters

TOKENS = [5, 6, 7, 8]


def result(arm: str, request: Request, speed: float, **completion: object) -> Result:
    return Result(arm, request, Completion(decode_tok_s=speed, ttft_s=0.5, **completion))


@pytest.fixture
def results() -> list[Result]:
    """Two prompts, three arms; past its window (10) the stock draft gets nothing accepted."""
    short, long = Request([1] * 4, 4), Request([1] * 40, 4)
    full, none = SpecCounters(2, 4, 3, (2, 1)), SpecCounters(3, 6, 0, (0, 0))
    return [
        result(TARGET_ONLY, long, 10.0, token_ids=TOKENS),
        result(TARGET_ONLY, short, 20.0, token_ids=TOKENS),
        result(EAGLE3, long, 8.0, token_ids=TOKENS, counters=none),
        result(EAGLE3, short, 50.0, token_ids=TOKENS, counters=full),
        result(DIFFSPEC, long, 25.0, token_ids=TOKENS, counters=full),
        result(DIFFSPEC, short, 45.0, token_ids=[5, 6, 9, 8], counters=full),
    ]


def test_rows_compare_each_answer_with_target_onlys(results: list[Result]) -> None:
    rows = report.rows(results)
    assert [(r["prompt_tokens"], r["arm"]) for r in rows] == [
        (n, arm) for n in (4, 40) for arm in (TARGET_ONLY, EAGLE3, DIFFSPEC)
    ]
    assert [r["first_difference"] for r in rows] == [None, None, 2, None, None, None]
    assert [r["ratio"] for r in rows] == [1.0, 2.5, 2.25, 1.0, 0.8, 2.5]
    assert [r["acceptance_length"] for r in rows] == [None, 2.5, 2.5, None, 1.0, 2.5]
    assert rows[1]["per_position_acceptance"] == [1.0, 0.5]
    assert json.loads(json.dumps(rows)) == rows


def test_rejected_placeholders_are_explained_only_past_the_window(results: list[Result]) -> None:
    rows = report.rows(results)
    note = report.placeholder_note(rows, window=10)
    assert note is not None
    assert "10 positions" in note
    assert report.placeholder_note(rows, window=44) is None
    assert report.placeholder_note(report.rows(results[:2]), window=10) is None


def render(sections: dict[str, object]) -> str:
    out = io.StringIO()
    demo.show(sections, Console(file=out, width=120, highlight=False))
    return out.getvalue()


def test_the_tables_say_what_happened(results: list[Result]) -> None:
    recall = {"num_speculative_tokens": 2, "draft_window": 10, "rows": report.rows(results)}
    said = render({"recall": recall, "text": {"skipped": "Not [here]."}})
    lines = {tuple(c.strip() for c in x.split("│")[1:3]): x for x in said.splitlines() if "│" in x}
    assert "differ at 2" in said
    assert "4/4" in lines["", DIFFSPEC]
    stock_past_window = lines["", EAGLE3 + "*"]
    assert "4/4" in stock_past_window
    assert "1.00" in stock_past_window
    assert "0.80x" in stock_past_window
    assert "* The draft's configuration says 10 positions." in said
    assert "Real text: skipped. Not [here]." in said
    assert "not a benchmark" in said


def test_the_continuation_is_shown_with_what_was_left_out(results: list[Result]) -> None:
    short = [r for r in results if len(r.request.prompt) == 4]
    section = {
        "file": "play.txt",
        "dropped_tokens": 17,
        "dtype": "bfloat16",
        "num_speculative_tokens": 3,
        "continuation": " And then [exit] he left.",
        "rows": report.rows(short),
    }
    recall = {"num_speculative_tokens": 2, "draft_window": 10, "rows": []}
    said = render({"recall": recall, "text": section})
    assert "And then [exit] he left." in said
    assert "play.txt, continued by DiffSpec's server" in said
    assert "first 17 tokens" in said
    assert "bfloat16" in said


def test_diffspec_differs_from_stock_in_its_keys_alone() -> None:
    target_only, stock, ours = three_arms(Path("draft"), 5, {"diffspec_token_budget": 512})
    assert target_only.speculative is None
    assert ours.speculative == {
        **(stock.speculative or {}),
        "draft_context_policy": "diffspec",
        "diffspec_token_budget": 512,
    }


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("flags : fpu avx512f avx512_bf16 amx_tile", "bfloat16"),
        ("Features : fp asimd bf16", "bfloat16"),
        ("flags : fpu avx2 avx512f", "float32"),
        (None, "float32"),
    ],
)
def test_bfloat16_is_used_where_the_cpu_has_it(
    tmp_path: Path, flags: str | None, dtype: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor : 0\n{flags}\n")
    assert realtext.native_dtype(cpuinfo) == dtype


@given(st.lists(st.integers()), st.integers(0, 20))
def test_a_long_text_keeps_its_end(tokens: list[int], room: int) -> None:
    kept, dropped = realtext.keep_end(tokens, room)
    assert len(kept) <= room
    assert tokens[:dropped] + kept == tokens
    assert dropped == 0 or len(kept) == room


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"abc\xff\xfe", "is not UTF-8 text (byte 3)"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused_before_anything_runs(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    if content is not None:
        text.write_bytes(content)
    ran = CliRunner().invoke(
        app, ["demo", "--quick", "--json", "--text", str(text), "--out", str(out)]
    )
    assert ran.exit_code == 1
    assert message in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.output
    assert ran.stdout == ""
    assert not (out / "recall").exists()


def test_without_the_repositorys_data_the_text_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtext, "PASSAGES", tmp_path / "passages")
    monkeypatch.setattr(realtext, "HEAD", tmp_path / "head")
    assert realtext.find_text(None) is None
    with Reporter(Console(file=io.StringIO())) as reporter:
        section = realtext.text_section(
            ("a.txt", "Once"), 8, 64, tmp_path / "out", reporter, with_target_only=True
        )
    assert list(section) == ["skipped"]
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    ran = CliRunner().invoke(app, ["demo", "--quick", "--out", str(tmp_path / "out")])
    assert ran.exit_code == 1
    assert "File exists" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "status"), [(["demo", "--fast"], 2), (["no-such"], 2), (["demo", "--help"], 0)]
)
def test_arguments(arguments: list[str], status: int) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == status


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"diffspec {__version__}\n"


def test_the_command_imports_nothing_heavy_until_it_runs() -> None:
    code = (
        "import sys, diffspec.cli.main;"
        "print(sorted({'torch', 'vllm', 'httpx', 'transformers'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_the_demo_module_loads_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, diffspec.cli.demo;"
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
