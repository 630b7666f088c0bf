# SPDX-License-Identifier: Apache-2.0
"""Fetches the source packages of host releases; nothing of them is built, imported or installed.

python -m diffspec.hosts.packages vllm-ascend 0.28.0rc1 FOLDER

downloads a release from the index that pip is configured for, unpacks it below FOLDER and prints
the folder of its package.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import get_args

from diffspec.hosts import metadata_backend
from diffspec.hosts.touch_point import PACKAGES, Host

_TIMEOUT_S = 600


class FetchError(Exception):
    """pip found no such source package, or it is not what it should be."""


def fetch(host: Host, version: str, folder: Path) -> Path:
    """Download a release's source package into ``folder`` and return the archive.

    An archive that is there already is taken as it is.

    Raises:
        FetchError: with the end of what pip said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (known := _archive(host, version, folder)) is not None:
        return known
    with tempfile.TemporaryDirectory() as temporary:
        # Ahead of the installed setuptools on the path of the process that pip asks for metadata.
        backend = Path(temporary, "setuptools")
        backend.mkdir()
        (backend / "__init__.py").touch()
        shutil.copyfile(metadata_backend.__file__, backend / "build_meta.py")
        path = os.pathsep.join(filter(None, (temporary, os.environ.get("PYTHONPATH"))))
        run = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--disable-pip-version-check", "--no-build-isolation", "--no-binary", ":all:"),
                *("--dest", str(folder), f"{host}=={version}"),
            ],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    archive = _archive(host, version, folder)
    if run.returncode or archive is None:
        said = " ".join(run.stderr.split())[-500:]
        raise FetchError(f"pip could not download the source of {host} {version}: {said}")
    return archive


def unpack(host: Host, archive: Path, folder: Path) -> Path:
    """Unpack the package of ``archive`` below ``folder`` and return the package's own folder.

    Other files of the archive stay in it.

    Raises:
        FetchError: the archive holds no such package.
    """
    (package,) = (name for name, known in PACKAGES.items() if known == host)
    with tarfile.open(archive) as tar:
        wanted = [
            member
            for member in tar.getmembers()
            if PurePosixPath(member.name).parts[1:2] == (package,)
        ]
        if not wanted:
            raise FetchError(f"{archive.name} holds no package {package}")
        tar.extractall(folder, wanted, filter="data")
    return folder / PurePosixPath(wanted[0].name).parts[0] / package


def sha256(archive: Path) -> str:
    """The archive's SHA-256 in hexadecimal digits."""
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def _archive(host: Host, version: str, folder: Path) -> Path | None:
    # Releases name their archives by either spelling.
    names = (f"{name}-{version}.tar.gz" for name in (host.replace("-", "_"), host))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _main(arguments: Sequence[str]) -> None:
    if len(arguments) != 3 or arguments[0] not in get_args(Host):
        raise SystemExit(f"usage: python -m diffspec.hosts.packages {'|'.join(get_args(Host))} "
                         "VERSION FOLDER")  # fmt: skip
    host: Host = "vllm" if arguments[0] == "vllm" else "vllm-ascend"
    folder = Path(arguments[2])
    try:
        print(unpack(host, fetch(host, arguments[1], folder), folder))
    except (FetchError, OSError, subprocess.TimeoutExpired) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    _main(sys.argv[1:])
