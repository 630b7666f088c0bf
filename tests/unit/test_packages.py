# SPDX-License-Identifier: Apache-2.0
"""Fetching source packages: through pip, without running a line of them."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from diffspec.hosts.packages import FetchError, fetch, sha256, unpack
from tests.ascend import environment

VERSION = "0.28.0rc1"
TOP = f"vllm_ascend-{VERSION}"
FILES = {
    "PKG-INFO": f"Metadata-Version: 2.1\nName: vllm_ascend\nVersion: {VERSION}\n"
    "Requires-Dist: no-such-package-anywhere\n",
    # What a real one has: a requirement that no index offers, and a build that must not start.
    "pyproject.toml": '[build-system]\nrequires = ["no-such-package-anywhere==1"]\n'
    'build-backend = "setuptools.build_meta"\n',
    "setup.py": 'raise SystemExit("the package was run")\n',
    "vllm_ascend/__init__.py": 'raise SystemExit("the package was imported")\n',
    "vllm_ascend/worker/worker.py": "class NPUWorker: ...\n",
    "tests/test_it.py": "",
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, and pip told to look nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    with tarfile.open(folder / f"{TOP}.tar.gz", "w:gz") as tar:
        for name, text in FILES.items():
            member = tarfile.TarInfo(f"{TOP}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_source_package_is_fetched_and_not_built(index: Path, tmp_path: Path) -> None:
    archive = fetch("vllm-ascend", VERSION, tmp_path / "got")
    assert archive.read_bytes() == (index / archive.name).read_bytes()
    assert sha256(archive) == hashlib.sha256(archive.read_bytes()).hexdigest()
    package = unpack("vllm-ascend", archive, tmp_path / "unpacked")
    assert package == tmp_path / "unpacked" / TOP / "vllm_ascend"
    there = {str(p.relative_to(package.parent)) for p in package.parent.rglob("*.py")}
    assert there == {"vllm_ascend/__init__.py", "vllm_ascend/worker/worker.py"}


def test_what_is_there_is_not_fetched_again(index: Path, tmp_path: Path) -> None:
    first = fetch("vllm-ascend", VERSION, tmp_path)
    (index / first.name).unlink()
    assert fetch("vllm-ascend", VERSION, tmp_path) == first


def test_what_cannot_be_had_is_said(index: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"could not download the source of vllm-ascend 9\.9"):
        fetch("vllm-ascend", "9.9", tmp_path)
    with pytest.raises(FetchError, match=r"holds no package vllm$"):
        unpack("vllm", index / f"{TOP}.tar.gz", tmp_path)


def test_a_name_that_leads_outside_is_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("../vllm/../../outside.py")
        tar.addfile(member, io.BytesIO(b""))
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack("vllm", tmp_path / "bad.tar.gz", tmp_path / "inner" / "folder")
    assert not list(tmp_path.rglob("outside.py"))


def test_the_module_prints_the_packages_folder(index: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "diffspec.hosts.packages"]
    run = subprocess.run(
        [*words, "vllm-ascend", VERSION, str(tmp_path / "got")], capture_output=True, text=True
    )
    assert (run.returncode, run.stdout.strip()) == (0, str(tmp_path / "got" / TOP / "vllm_ascend"))
    run = subprocess.run([*words, "torch", "1", "x"], capture_output=True, text=True)
    assert run.returncode == 1
    assert "usage: python -m diffspec.hosts.packages" in run.stderr


def test_a_published_package(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if not request.config.getoption("--online"):
        pytest.skip("downloads packages; asked for by --online")
    from diffspec.hosts.refresh import refreshed
    from diffspec.hosts.releases import RELEASES
    from diffspec.hosts.snapshot import load

    (release,) = (r for r in RELEASES if (r.host, r.version) == ("vllm-ascend", VERSION))
    (taken,) = refreshed(tmp_path, tmp_path / "unpacked", [release])
    assert taken == load(release)


def test_the_tests_environment_is_made_of_the_recorded_archive_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(host: str, version: str, folder: Path) -> Path:
        archive = folder / f"{TOP}.tar.gz"
        archive.write_bytes(b"another archive of that name")
        return archive

    monkeypatch.setattr(environment, "FOLDER", tmp_path / "made")
    monkeypatch.setattr(environment, "_STAMP", tmp_path / "made" / ".stamp")
    monkeypatch.setattr(environment, "fetch", other)
    with pytest.raises(FetchError, match=f"the recorded snapshot {environment.recorded()}"):
        environment.make()
    assert not (tmp_path / "made" / ".stamp").exists()
