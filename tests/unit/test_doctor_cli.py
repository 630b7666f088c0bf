# SPDX-License-Identifier: Apache-2.0
"""``diffspec doctor`` as a command: lines, JSON, exit status, and that it imports no vLLM."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from diffspec import __version__
from diffspec.cli.doctor import show
from diffspec.cli.main import app
from diffspec.doctor.findings import Finding, Report, error, from_message, ok, warning
from diffspec.hosts.surface import TOUCH_POINTS

from .doctor_models import DRAFT, EAGLE3_QWEN3, LLAMA, QWEN35_27B, write_draft, write_model
from .doctor_python import put_manager

# Runs the command and says on standard error which of the heavy packages it loaded.
LOADED = """
import sys
from diffspec.cli.main import app
try:
    app(["doctor", "--json"])
finally:
    heavy = {"torch", "vllm", "vllm_ascend", "transformers"}
    print("loaded:", sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


def run(*words: str, env: dict[str, str] | None = None) -> Any:
    """Run the command in this process, in an environment that asks for nothing and where no
    Manager is found."""
    names = ("VLLM_PLUGINS", "VLLMHUST_EXT_ENABLED_BUNDLES", "DIFFSPEC_DISABLE")
    cleared: dict[str, str | None] = dict.fromkeys((*names, "VLLM_USE_V2_MODEL_RUNNER"))
    return CliRunner().invoke(app, ["doctor", *words], env={**cleared, "PATH": "", **(env or {})})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_findings_and_their_json() -> None:
    report = Report.of([ok("a.b", "fine"), warning("a.c", "odd", "do"), ok("a.b", "fine")])
    assert report.to_json()["findings"] == [
        {"id": "a.b", "level": "ok", "what": "fine", "fix": ""},
        {"id": "a.c", "level": "warning", "what": "odd", "fix": "do"},
    ]
    assert report.findings[0].area == "a"
    assert from_message("x", "error", "one; two; do it") == Finding(
        "x", "error", "one; two", "do it"
    )
    assert from_message("x", "error", "only this") == Finding("x", "error", "only this", "")


@pytest.mark.parametrize(
    ("findings", "strict", "status", "line"),
    [
        ([ok("a", "x")], True, 0, "0 errors, 0 warnings: all is well"),
        ([warning("a", "x")], False, 0, "0 errors, 1 warning: nothing stands in the way"),
        ([warning("a", "x")], True, 1, "0 errors, 1 warning: refused, because of --strict"),
        ([warning("a", "x"), error("b", "y")], True, 2, "1 error, 1 warning: this will not run"),
    ],
)
def test_exit_status_and_the_last_line(
    findings: list[Finding], strict: bool, status: int, line: str
) -> None:
    report = Report.of(findings)
    assert report.exit_status(strict=strict) == status
    out = io.StringIO()
    show(report, Console(file=out, width=40), strict=strict)
    assert line in out.getvalue()


def test_lines_are_whole_and_plain_where_it_is_no_terminal() -> None:
    out = io.StringIO()
    finding = error("area.subject", "a long\n  finding " + "x" * 300, "set [this] to 1")
    show(Report.of([finding]), Console(file=out, width=40))
    first, _, rest = out.getvalue().partition("\n")
    assert (
        first == f"error   area.subject               a long finding {'x' * 300} -> set [this] to 1"
    )
    assert rest.count("\n") == 1


def test_the_installed_machine_is_fine_and_nothing_heavy_is_imported(home: Path) -> None:
    """The real environment of these tests, in a process of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM", "DIFFSPEC", "HUST"))}
    env["PATH"] = ""  # where another may have the Manager
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "loaded: []"
    report = json.loads(done.stdout)
    assert (report["schema"], report["version"]) == ("diffspec-doctor/1", __version__)
    found = {f["id"]: f for f in report["findings"]}
    assert {"host.python", "host.version", "host.surface", "plugins.visible"} <= set(found)
    # Of this project's own Python; another one would be said to be untested.
    assert {f["level"] for f in report["findings"] if f["id"] != "host.python"} == {"ok"}
    assert "by their source only, nothing was imported" in found["host.surface"]["what"]


def test_deep_imports_the_host(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a host of a single file, so everything else is missing; it prints while imported."""
    (home / "path" / "vllm").mkdir(parents=True)
    (home / "path" / "vllm" / "__init__.py").write_text("print('hello')\n__version__ = '0.28.0'\n")
    monkeypatch.setenv("PYTHONPATH", str(home / "path"))
    done = run("--deep", "--json")
    texts = [f["what"] for f in json.loads(done.stdout)["findings"] if f["id"] == "host.surface"]
    assert "module vllm.config cannot be imported" in " ".join(texts)
    # Each missing module is said once, however many touch points are in it.
    assert len(texts) == len({p.module for p in TOUCH_POINTS if p.platform in ("any", "cpu")})
    assert done.exit_code == 2


def test_a_pair_that_does_not_fit(home: Path) -> None:
    target = write_model(home / "t", QWEN35_27B)
    draft = write_draft(home / "d", EAGLE3_QWEN3["8B"])
    done = run("--platform", "ascend", "--target", str(target), "--draft", str(draft))
    assert done.exit_code == 2
    (line,) = [x for x in done.stdout.splitlines() if "draft_vocabulary" in x]
    assert line == (
        "error   pair.draft_vocabulary      the draft has vocab_size = 151936 but the target "
        "248320 -> use this target's draft"
    )


def test_a_file_a_command_and_strict(home: Path) -> None:
    target, draft = write_model(home / "t", LLAMA), write_draft(home / "d", DRAFT)
    spec = {
        "method": "eagle3",
        "model": str(draft),
        "num_speculative_tokens": 3,
        "draft_context_policy": "diffspec",
    }
    file = home / "diffspec.json"
    file.write_text(
        json.dumps({"launch_options": {"speculative_config": spec}, "host_version": "0.28.0rc1"})
    )
    server = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", str(target)]
    env = {"PATH": put_manager(home)}
    done = run("--strict", str(file), "--", *server, env=env)
    assert done.exit_code == 0, done.stdout
    assert "the Manager adds --speculative-config" in done.stdout
    named = run("--strict", "--config-file", str(file), "--", *server, env=env)
    assert named.stdout == done.stdout
    managed = ["vllm-hust-ext", "run", "--", *server]
    assert run("--strict", str(file), "--", *managed, env=env).exit_code == 0
    assert run(str(file), "--", *managed).exit_code == 2
    short = ["-sc", json.dumps(spec)]
    assert run("--", *server, *short).exit_code == 0
    assert run("--strict", "--", *server, *short).exit_code == 1
    assert run(str(file), "--", *server, *short, env=env).exit_code == 2


DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"
_EXAMPLE = re.compile(
    r"^```bash\n(diffspec doctor (?:(?!```).)*?)^```\n\n```text\n(.*?)^```$", re.M | re.S
)


def test_the_examples_in_the_documentation_print_what_it_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do not depend on the machine; its own lines are left out there and here."""
    write_model(home / "qwen3.8-27b", QWEN35_27B)
    write_draft(home / "eagle3-qwen3-8b", EAGLE3_QWEN3["8B"])
    write_model(home / "llama", LLAMA)
    write_draft(home / "draft", DRAFT)
    monkeypatch.chdir(home)
    examples = _EXAMPLE.findall(DOCS.read_text(encoding="utf-8"))
    assert len(examples) == 2
    for words, printed in examples:
        lines = run(*shlex.split(words)[2:]).stdout.splitlines()
        elsewhere = any("host.elsewhere" in line for line in lines)
        machine = () if elsewhere else ("host.", "plugins.", "manager.")
        kept = [line for line in lines if not line[8:].startswith(machine)]
        assert kept == printed.splitlines()
