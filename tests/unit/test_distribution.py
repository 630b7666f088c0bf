# SPDX-License-Identifier: Apache-2.0
"""What gets installed, from a wheel, from an sdist and in place; the manager's view of each."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Installed:
    """One install: where it lies, and the only extension found there."""

    folder: Path
    extension: dict[str, Any]


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
        script = bundle_discovery.__file__
        answer = json.loads(run(sys.executable, "-I", "-S", script, str(target)))
        assert answer["loaded"] == []
        (extension,) = answer["extensions"]
        return Installed(target, extension)

    return place


WAYS = pytest.mark.parametrize("way", ["wheel", "sdist", "editable"])


@WAYS
def test_the_manager_finds_the_manifest(installed: Callable[[str], Installed], way: str) -> None:
    found = installed(way).extension
    assert found["id"] == EXTENSION_ID
    assert found["distribution"] == "vllm-diffspec"
    assert found["editable"] is (way == "editable")
    assert Path(found["path"]).read_bytes() == MANIFEST.read_bytes()
    assert found["manifest"]["extension_version"] == found["version"] == diffspec.__version__
    manifests = [f for f in found["record"] if Path(f).name in bundle_discovery.MANIFEST_NAMES]
    assert manifests == [f"diffspec_manifest/{schemas.MANIFEST}"]


@WAYS
def test_nothing_is_installed_under_a_common_name(
    installed: Callable[[str], Installed], way: str
) -> None:
    record = installed(way).extension["record"]
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
    (entry,) = importlib.metadata.entry_points(group=bundle_discovery.GROUP, name=EXTENSION_ID)
    assert entry.dist is not None
    found = bundle_discovery.read(entry.dist, entry.name, entry.value)
    stale = "the installed copy of the manifest is older than the checkout's: make setup"
    assert found["manifest"] == json.loads(MANIFEST.read_text(encoding="utf-8")), stale
