# SPDX-License-Identifier: Apache-2.0
"""The demo's plan, its tables, and what it says of input it cannot use."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from diffspec import __version__
from diffspec.cli import demo, realtext, report
from diffspec.cli.arms import (
    DIFFSPEC,
    EAGLE3,
    EAGLE3_LONG,
    LONG_WINDOW,
    TARGET_ONLY,
    Request,
    Result,
    four_arms,
    three_arms,
)
from diffspec.cli.client import Completion
from diffspec.cli.main import app
from diffspec.cli.progress import Reporter
from diffspec.testbed.counters import SpecCounters

TOKENS = [5, 6, 7, 8]
RECALL = {"num_speculative_tokens": 2, "draft_window": 10, "long_draft_window": None}
SKIPPED = {"skipped": "Not [here]."}


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


def render(sections: dict[str, object], width: int = 120) -> str:
    out = io.StringIO()
    demo.show(sections, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_the_tables_say_what_happened(results: list[Result]) -> None:
    said = render({"recall": RECALL | {"rows": report.rows(results)}, "text": SKIPPED})
    lines = {tuple(c.strip() for c in x.split("│")[1:3]): x for x in said.splitlines() if "│" in x}
    assert "differ at 2" in said
    assert "4/4" in lines["", DIFFSPEC]
    stock_past_window = lines["", EAGLE3 + "*"]
    assert "4/4" in stock_past_window
    assert "1.00" in stock_past_window
    assert "0.80x" in stock_past_window
    assert "* The draft's configuration says 10 positions." in said
    assert "Real text: skipped. Not [here]." in said
    assert "ratio to" in said
    assert "(illustration)" in said
    assert "not a benchmark" in said


@pytest.mark.parametrize(("width", "positions"), [(120, True), (100, False), (80, False)])
def test_no_figure_is_cut_on_a_narrow_terminal(
    results: list[Result], width: int, positions: bool
) -> None:
    rows = report.rows(results)
    for row in rows:  # the widest there are
        row["arm"] = EAGLE3_LONG if row["arm"] == EAGLE3 else row["arm"]
        row |= {"prompt_tokens": row["prompt_tokens"] + 16384, "generated_tokens": 256}
        row |= {"per_position_acceptance": [0.98] * 3, "first_difference": None}
        row["time_to_first_token_s"] = 23.45
    said = render({"recall": RECALL | {"rows": rows}, "text": SKIPPED}, width)
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= width
    assert said.count("23.45 s") == len(rows)
    assert ("accepted per position" in said) == positions


@pytest.mark.parametrize(("long", "said"), [(None, False), (LONG_WINDOW, True)])
def test_a_second_draft_is_named_where_there_is_one(long: int | None, said: bool) -> None:
    title = report.recall_title(RECALL | {"long_draft_window": long})
    assert "draft built for 10 positions" in title
    assert (str(LONG_WINDOW) in title) == said


def test_the_longest_prompts_continuation_is_shown(results: list[Result]) -> None:
    section = {
        "file": "play.txt",
        "file_tokens": 57,
        "dtype": "bfloat16",
        "num_speculative_tokens": 3,
        "continuation": " And then [exit] he left.",
        "rows": report.rows(results),
    }
    said = render({"recall": RECALL | {"rows": []}, "text": section})
    assert "And then [exit] he left." in said
    assert "play.txt, its last 40 tokens continued by DiffSpec's server" in said
    assert "bfloat16" in said


def test_diffspec_differs_from_stock_in_its_keys_alone() -> None:
    target_only, stock, ours = three_arms(Path("draft"), 5, {"diffspec_token_budget": 512})
    assert target_only.speculative is None
    assert ours.speculative == {
        **(stock.speculative or {}),
        "draft_context_policy": "diffspec",
        "diffspec_token_budget": 512,
    }


def test_the_fourth_arm_is_stock_with_another_draft() -> None:
    arms = four_arms(Path("short"), Path("long"), 5)
    by_label = {arm.label: arm.speculative for arm in arms}
    assert list(by_label) == [TARGET_ONLY, EAGLE3_LONG, EAGLE3, DIFFSPEC]
    assert by_label[EAGLE3_LONG] == {**(by_label[EAGLE3] or {}), "model": "long"}
    assert by_label[EAGLE3] == three_arms(Path("short"), 5)[1].speculative


def listed(numbers: Iterable[str]) -> str:
    *others, last = numbers
    return f"{', '.join(others)} and {last}"


def test_the_readme_says_what_the_plans_hold() -> None:
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text("utf-8").split())
    full, quick = demo.Plan(), demo.QUICK
    recall, short = (listed(f"{n // 1024}K" for n in p.lengths) for p in (full, quick))
    text = listed(f"{n // 1000} {n % 1000:03}" for n in full.text_lengths)
    assert f"prompts of {recall}, {full.generate} tokens" in readme
    assert f"prompts of {text} tokens" in readme
    assert f"{full.text_generate} tokens: target-only, stock and DiffSpec" in readme
    assert f"`QUICK=1` does the same with {short}, {quick.generate} tokens" in readme


def test_every_prompt_of_a_plan_fits() -> None:
    for plan in (demo.Plan(), demo.QUICK):
        assert max(plan.lengths) + plan.generate < LONG_WINDOW
        # SmolLM2's own context.
        assert max(plan.text_lengths) + plan.text_generate + realtext.MARGIN <= 8192
        assert min(plan.text_lengths) > realtext.KEYS["diffspec_token_budget"]


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


@given(st.lists(st.integers(), min_size=1), st.sets(st.integers(1, 20), min_size=1))
def test_prompts_are_beginnings_of_the_texts_end(tokens: list[int], lengths: set[int]) -> None:
    prompts = realtext.nested(tokens, lengths)
    assert tokens[: len(tokens) - len(prompts[-1])] + prompts[-1] == tokens
    for prompt in prompts:
        assert prompt + prompts[-1][len(prompt) :] == prompts[-1]
    found = [len(prompt) for prompt in prompts]
    fitting = {n for n in lengths if n <= len(tokens)}
    whole = {len(tokens)} if fitting != lengths else set()
    assert found == sorted(fitting | whole)


def test_our_text_ends_where_the_passage_does() -> None:
    named = realtext.find_text(None)
    if named is None:
        pytest.skip("the repository's data is not here")
    name, text = named
    assert name.startswith("winters-tale.txt")
    assert text.endswith(realtext.PASSAGE.read_text(encoding="utf-8"))
    assert realtext.PLAY.read_text(encoding="utf-8").startswith(text)
    assert len(text) > 4 * 7000  # more than four characters to a token would be rare


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
    monkeypatch.setattr(realtext, "PLAY", tmp_path / "play.txt")
    monkeypatch.setattr(realtext, "HEAD", tmp_path / "head")
    assert realtext.find_text(None) is None
    with Reporter(Console(file=io.StringIO())) as reporter:
        section = realtext.text_section(
            ("a.txt", "Once"), (8, 9), 4, tmp_path / "out", reporter, with_target_only=True
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


def test_the_demo_module_loads_nothing_heavy() -> None:
    code = (
        "import sys, diffspec.cli.demo;"
        "print(sorted({'torch', 'vllm', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
