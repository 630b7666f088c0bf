# SPDX-License-Identifier: Apache-2.0
"""Against packages that are not ours and not installed here; ``--online`` downloads them.

Published extensions must fit the manifest schema, and our host range must mean the same under older
releases of ``packaging``, which is what the extension manager compares versions with.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from diffspec import schemas
from tests.unit.test_distribution import bundles
from tests.unit.test_manifest import LOOKED_AT, NOT_LOOKED_AT

PEERS = ("vllm-hust-vspec", "vllm-hust-bidkv", "vllm-hust-opset", "vllm-ascend-split-batch")


@pytest.fixture(autouse=True)
def online(request: pytest.FixtureRequest) -> None:
    """Skips unless the run was asked to download."""
    if not request.config.getoption("--online"):
        pytest.skip("downloads packages; asked for by --online")


def run(*arguments: str) -> str:
    """Standard output of a Python process that must succeed."""
    command = (sys.executable, "-I", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def download(requirement: str, folder: Path) -> Path:
    """The wheel of one requirement, without its dependencies."""
    run(
        *("-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"),
        *("-d", str(folder), requirement),
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.parametrize("name", PEERS)
def test_a_published_extension_is_found_and_fits_the_schema(name: str, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(download(name, tmp_path)) as wheel:
        wheel.extractall(installed)
    answer = bundles(installed)
    assert answer["errors"] == {}
    assert {found["distribution"] for found in answer["extensions"]} == {name}
    for found in answer["extensions"]:
        print(found["distribution"], found["version"], found["id"])
        assert found["manifest"]["schema_version"] == "0.2-experimental"
        assert schemas.problems("manifest-0.2", found["manifest"]) == []


@pytest.mark.parametrize("release", ["24.0", "25.0", "26.0"])
def test_the_host_range_means_the_same_to(release: str, tmp_path: Path) -> None:
    wheel = download(f"packaging=={release}", tmp_path)  # runs from the wheel as it is
    answer = run(
        *("-S", "-c"),
        "import json, sys\n"
        f"sys.path.insert(0, {str(wheel)!r})\n"
        "import packaging\n"
        "from packaging.specifiers import SpecifierSet\n"
        f"host = SpecifierSet({schemas.manifest()['host']['version_range']!r})\n"
        f"versions = {[*LOOKED_AT, *NOT_LOOKED_AT]!r}\n"
        "print(json.dumps([packaging.__version__, [v for v in versions if host.contains(v)]]))",
    )
    assert json.loads(answer) == [release, list(LOOKED_AT)]
