# SPDX-License-Identifier: Apache-2.0
"""An environment in which vLLM-Ascend's sources can be imported without an NPU.

A virtual environment in ``.venv-ascend`` that sees the packages of the main one and, besides them,
the Python sources of one vLLM-Ascend release. The main environment never sees those. What is
missing for an import (``torch_npu``, CANN) is faked by ``inside/fake_npu.py``.

    python -m tests.ascend.environment      make it, unless it is there
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from diffspec.hosts.packages import FetchError, fetch, sha256, unpack
from diffspec.hosts.releases import RELEASES
from diffspec.hosts.snapshot import load

#: The release whose vLLM is the one in the main environment.
RELEASE = "0.28.0rc1"
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-ascend"
PYTHON = FOLDER / "bin" / "python"
#: Says for which release the environment is complete.
_STAMP = FOLDER / ".stamp"


def make() -> None:
    """Make the environment; does nothing if it is complete.

    Raises:
        FetchError: the package index did not give the sources, or not those that were recorded.
        TimeoutExpired: it took too long.
    """
    if _STAMP.exists() and _STAMP.read_text() == RELEASE:
        _STAMP.touch()  # newer than this file, for make
        return
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    venv.create(FOLDER, symlinks=True, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = FOLDER / "lib" / version / "site-packages"
    # A path, not a site folder: the editable installs of the main environment stay out of here.
    (packages / "main.pth").write_text(sysconfig.get_path("purelib") + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        archive = fetch("vllm-ascend", RELEASE, Path(scratch))
        if (digest := sha256(archive)) != recorded():
            raise FetchError(
                f"{archive.name} has the SHA-256 {digest}, the recorded snapshot {recorded()}"
            )
        shutil.copytree(unpack("vllm-ascend", archive, Path(scratch)), packages / "vllm_ascend")
    # What the package's build writes: the kind of device it is for.
    (packages / "vllm_ascend" / "_build_info.py").write_text("__device_type__ = 'A2'\n")
    _STAMP.write_text(RELEASE)


def recorded() -> str:
    """The SHA-256 of the archive whose touch points are in the repository."""
    (release,) = (r for r in RELEASES if r.host == "vllm-ascend" and r.version == RELEASE)
    return load(release).sha256


if __name__ == "__main__":
    try:
        make()
    except (FetchError, OSError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"vLLM-Ascend {RELEASE} for its tests: {error}") from None
