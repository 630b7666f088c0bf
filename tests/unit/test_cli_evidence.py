# SPDX-License-Identifier: Apache-2.0
"""The commands `diffspec evidence validate`, `list` and `catalog`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffspec.cli.main import app
from diffspec.evidence.catalog import catalog_problems
from diffspec.evidence.records import CHECKOUT

SAGE = CHECKOUT / "evidence" / "sage-mate-20260904-tp4-graph.json"
COMMIT = "0123456789abcdef" * 2 + "01234567"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["evidence", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / SAGE.name
    path.write_text(SAGE.read_text().replace("not-recommended-for-tested-cell", "fast"))
    return path


def test_all_records_of_the_checkout_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    code, out, _ = run("validate")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == len(list((CHECKOUT / "evidence").glob("*.json")))
    assert f"evidence/{SAGE.name}: valid, qualification" in lines
    assert "evidence/identity.json: valid, benchmark" in lines


def test_a_wrong_record_is_named_with_its_problem(wrong: Path) -> None:
    code, out, _ = run("validate", str(wrong), str(SAGE))
    assert code == 2
    assert f"{wrong}: $.verdict.word: 'fast' is not one of" in out
    code, out, _ = run("validate", "--json", str(wrong), str(SAGE))
    assert code == 2
    first, second = json.loads(out)
    assert len(first["problems"]) == 1
    assert second["problems"] == []


def test_list_shows_words_units_and_what_was_not_verified() -> None:
    code, out, _ = run("list", str(SAGE))
    assert code == 0
    assert out.startswith(
        f"{SAGE.stem}: qualification, 2026-09-04, not-recommended-for-tested-cell"
    )
    for line in (
        "  requests warm: DiffSpec, time to first token, P50: 0.459 s",
        "  requests warm: target-only, output throughput, P95: 56.97 tokens/s",
        "  requests all counted: DiffSpec, accepted share of draft tokens: 19.29 %",
        "  pair: compatible, performance degraded, not recommended",
        "  not verified here: Prompts, number of requests and generated length are not stated.",
    ):
        assert line in out.splitlines()


def test_list_shows_benchmarks_without_a_verdict() -> None:
    code, out, _ = run("list", str(CHECKOUT / "evidence" / "identity.json"))
    assert code == 0
    assert out.startswith("identity: benchmark, ")
    assert "no verdict" in out
    assert "  what: identity with target-only" in out.splitlines()


def test_list_for_machines(wrong: Path) -> None:
    code, out, _ = run("list", "--json", str(SAGE), str(wrong))
    assert code == 2
    good, bad = json.loads(out)
    assert good["record"] == json.loads(SAGE.read_text(encoding="utf-8"))
    assert good["problems"] == []
    assert "fast" in bad["problems"][0]


def test_nothing_to_check_is_an_error(tmp_path: Path) -> None:
    code, out, err = run("validate", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == f"diffspec evidence: no *.json in {tmp_path}\n"


def test_catalog_prints_a_valid_catalogue() -> None:
    code, out, _ = run("catalog", "--commit", COMMIT, "--ref", "v1", "--repository", "somewhere")
    document = json.loads(out)
    assert code == 0
    assert catalog_problems(document) == []
    assert document["source"] == {"ref": "v1", "commit": COMMIT}
    assert document["extensions"][0]["repository"] == "somewhere"


def test_catalog_asks_for_what_it_cannot_know() -> None:
    code, out, err = run("catalog")
    assert (code, out) == (2, "")
    assert "--repository" in err
    somewhere = ("catalog", "--repository", "somewhere")
    code, _, err = run(*somewhere, "--commit", COMMIT)
    assert (code, "--commit needs --ref" in err) == (2, True)
    code, out, err = run(*somewhere, "--commit", "HEAD", "--ref", "main")
    assert (code, out) == (2, "")
    assert "expected the 40 hexadecimal digits of a commit" in err


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_catalog_takes_the_commit_of_its_checkout_if_nothing_changed(tmp_path: Path) -> None:
    for name in ("diffspec", "schemas", "manifest", "evidence"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=ignore)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    git(tmp_path, "init", "-q", "-b", "trunk")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")

    def catalog() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "diffspec.cli.main", "evidence", "catalog"]
        command += ["--repository", "somewhere"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    source = {"ref": "trunk", "commit": git(tmp_path, "rev-parse", "HEAD")}
    assert json.loads(catalog().stdout)["source"] == source
    with (tmp_path / "manifest" / "vllm-hust-extension-v0.2.json").open("a") as file:
        file.write("\n")
    after = catalog()
    assert after.returncode == 2
    assert "differ from the commit" in after.stderr
