# SPDX-License-Identifier: Apache-2.0
"""``diffspec surface``: what it prints and its exit status."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffspec.cli.main import app
from diffspec.hosts import snapshot
from diffspec.hosts.releases import RELEASES
from diffspec.hosts.touch_points import TOUCH_POINTS

RUNNER = CliRunner()


def test_every_touch_point_and_release_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = RUNNER.invoke(app, ["surface", "show"])
    assert result.exit_code == 0
    for point in TOUCH_POINTS:
        assert point.name in result.output
    for release in RELEASES:
        assert release.version in result.output
    assert "vLLM 0.30.0: CommonAttentionMetadata lacks _seq_lens_cpu" in result.output


def test_as_json() -> None:
    result = RUNNER.invoke(app, ["surface", "show", "--json"])
    document = json.loads(result.output)
    assert {(r["host"], r["version"]) for r in document["releases"]} == {
        (r.host, r.version) for r in RELEASES
    }
    states = {v["state"] for r in document["releases"] for v in r["touch_points"].values()}
    assert states == {"ok", "differs", "not used"}


def test_a_download_that_takes_too_long_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> Path:
        raise subprocess.TimeoutExpired("pip", 600)

    monkeypatch.setattr("diffspec.hosts.refresh.fetch", slow)
    result = RUNNER.invoke(app, ["surface", "refresh", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.output.startswith("diffspec surface: Command 'pip' timed out")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recorded snapshots, shown in their place."""
    folder = shutil.copytree(snapshot.FOLDER, tmp_path / "snapshots")
    monkeypatch.setattr(snapshot.load, "__defaults__", (folder,))
    return folder


@pytest.mark.parametrize(("version", "status"), [("0.28.0rc1", 1), ("0.30.0rc2", 0)])
def test_a_difference_counts_where_the_release_is_accepted(
    changed: Path, version: str, status: int
) -> None:
    path = changed / f"vllm-ascend-{version}.json"
    text = path.read_text()
    assert text.count("spec_decode_metadata, valid_sampled_tokens_count)") == 1
    path.write_text(text.replace("spec_decode_metadata, valid_sampled", "valid_sampled"))
    result = RUNNER.invoke(app, ["surface", "show"])
    assert result.exit_code == status
    assert "prepare_inputs_padded lacks parameter 'spec_decode_metadata'" in result.output


def test_a_missing_snapshot_says_what_to_run(changed: Path) -> None:
    (changed / "vllm-0.32.0.json").unlink()
    result = RUNNER.invoke(app, ["surface", "show"])
    assert result.exit_code == 2
    assert "run: diffspec surface refresh" in result.output


def test_packages_on_disk(tmp_path: Path) -> None:
    root = tmp_path / "vllm"
    root.mkdir()
    (root / "__init__.py").write_text("raise SystemExit('imported')\n")
    (root / "_version.py").write_text("__version__ = '0.99.0'\n")
    result = RUNNER.invoke(app, ["surface", "check", str(root), "--json"])
    assert result.exit_code == 1
    (release,) = json.loads(result.output)["releases"]
    assert (release["host"], release["version"]) == ("vllm", "0.99.0")
    used = [v for v in release["touch_points"].values() if v["state"] != "not used"]
    assert {v["state"] for v in used} == {"absent"}
    assert len(used) == len(
        {p.target for p in TOUCH_POINTS if p.platform in ("any", "cpu", "cuda")}
    )


def test_the_installed_vllm_on_disk() -> None:
    vllm = pytest.importorskip("vllm")
    result = RUNNER.invoke(app, ["surface", "check", str(Path(vllm.__file__).parent), "--json"])
    assert result.exit_code == 0, result.output


def test_a_folder_that_is_no_host(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["surface", "check", str(tmp_path)])
    assert result.exit_code == 2
    assert "is no package vllm or vllm_ascend" in result.output
