# SPDX-License-Identifier: Apache-2.0
"""What gets installed, from a wheel, from an sdist and in place; the manager's view of each."""

from __future__ import annotations

import csv
import functools
import importlib.resources
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packaging
import pytest

import diffspec
from diffspec import schemas
from diffspec.environment import EXTENSION_ID
from tests.unit import bundle_discovery

ROOT = Path(diffspec.__file__).parents[1]
MANIFEST = ROOT / "manifest" / schemas.MANIFEST

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="not in a checkout: nothing to build"
)


def run(*command: str) -> str:
    """Standard output of a command that must succeed, in an environment of its own."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(target: Path, *what: str) -> Path:
    """Install into an empty folder, without dependencies, building in this environment."""
    run(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"),
        *("--ignore-installed", "--target", str(target), *what),
    )
    return target


def bundles(*folders: Path) -> dict[str, Any]:
    """What the Manager's stand-in finds in folders of installed packages."""
    library = Path(packaging.__file__).parents[1]
    script = bundle_discovery.__file__
    found: dict[str, Any] = json.loads(
        run(sys.executable, "-I", "-S", script, str(library), *map(str, folders))
    )
    return found


@dataclass(frozen=True)
class Installed:
    """One install: where it lies, and the only extension found there."""

    folder: Path
    extension: dict[str, Any]

    @property
    def record(self) -> list[str]:
        """The files that the distribution says it has installed."""
        (file,) = self.folder.glob("vllm_diffspec-*.dist-info/RECORD")
        return [row[0] for row in csv.reader(file.read_text(encoding="utf-8").splitlines())]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Installed]:
    """Installs in one of three ways, each once: ``wheel``, ``sdist`` or ``editable``."""
    out = tmp_path_factory.mktemp("dist")

    @functools.cache
    def built() -> tuple[Path, Path]:
        run(sys.executable, "-m", "hatchling", "build", "-d", str(out))
        (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
        return wheel, sdist

    @functools.cache
    def place(way: str) -> Installed:
        target = tmp_path_factory.mktemp(way)
        if way == "editable":
            install(target, "-e", str(ROOT))
        else:
            install(target, str(built()[("wheel", "sdist").index(way)]))
        answer = bundles(target)
        assert (answer["loaded"], answer["errors"]) == ([], {})
        (extension,) = answer["extensions"]
        return Installed(target, extension)

    return place


WAYS = pytest.mark.parametrize("way", ["wheel", "sdist", "editable"])


@WAYS
def test_the_manager_finds_the_manifest(installed: Callable[[str], Installed], way: str) -> None:
    found = installed(way).extension
    assert found["id"] == EXTENSION_ID
    assert found["distribution"] == "vllm-diffspec"
    # In place too it is a file of the distribution, not one that is looked for in the checkout.
    assert found["in_record"]
    assert Path(found["path"]).is_relative_to(installed(way).folder)
    assert Path(found["path"]).read_bytes() == MANIFEST.read_bytes()
    assert found["manifest"]["extension_version"] == found["version"] == diffspec.__version__
    data = [f for f in installed(way).record if f.startswith("diffspec_manifest/")]
    assert [f for f in data if f.endswith(".json")] == [f"diffspec_manifest/{schemas.MANIFEST}"]


@WAYS
def test_nothing_is_installed_under_a_common_name(
    installed: Callable[[str], Installed], way: str
) -> None:
    record = installed(way).record
    tops = {name.partition("/")[0] for name in record}
    # The command is recorded relative to the folder, which pip did not use as a prefix.
    packages = {
        t for t in tops if t not in ("..", "bin") and not t.endswith((".dist-info", ".pth"))
    }
    own = {"diffspec_manifest", "diffspec_schemas"}
    assert packages == (own if way == "editable" else own | {"diffspec"})
    files = {f"diffspec_schemas/{name}.schema.json" for name in schemas.NAMES}
    assert files <= set(record)


@pytest.mark.parametrize("way", ["wheel", "sdist"])
def test_an_installed_copy_reads_its_own_files(
    installed: Callable[[str], Installed], way: str
) -> None:
    target = installed(way).folder
    text = run(
        *(sys.executable, "-I", "-c"),
        "import json, sys\n"
        f"sys.path.insert(0, {str(target)!r})\n"
        "from diffspec import schemas\n"
        "import diffspec_manifest\n"
        "heavy = [m for m in ('torch', 'vllm', 'numpy') if m in sys.modules]\n"
        "wrong = schemas.problems('manifest-0.2', schemas.manifest())\n"
        "print(json.dumps([schemas.__file__, [schemas.load(n) for n in schemas.NAMES],"
        " schemas.manifest(), heavy, wrong]))",
    )
    file, loaded, manifest, heavy, wrong = json.loads(text)
    assert Path(file).is_relative_to(target)
    assert loaded == [schemas.load(name) for name in schemas.NAMES]
    assert manifest == json.loads(MANIFEST.read_text(encoding="utf-8"))
    assert heavy == wrong == []


def test_this_environment_has_the_current_manifest() -> None:
    installed = importlib.resources.files("diffspec_manifest") / schemas.MANIFEST
    stale = "the installed copy of the manifest is older than the checkout's: make setup"
    assert installed.read_bytes() == MANIFEST.read_bytes(), stale
