# SPDX-License-Identifier: Apache-2.0
"""Virtual environments with everything the running one has, except vllm-diffspec."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_OURS = ("diffspec", "vllm_diffspec", "_editable_impl_vllm_diffspec")
#: What a Manager, vLLM or this package would take from the shell that runs the tests.
_DROPPED = ("VLLM_PLUGINS", "VLLMHUST_", "VLLM_ECPA_", "VLLM_HUST_", "DIFFSPEC_", "PYTHONPATH")


@dataclass(frozen=True)
class Environment:
    """One virtual environment; packages can be installed into it and removed again."""

    root: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def packages(self) -> Path:
        """Its own site-packages, without the packages it shares."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return self.root / "lib" / f"python{version}" / "site-packages"

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        """A shell's variables with this environment activated and nothing preset."""
        kept = {name: text for name, text in inherited.items() if not name.startswith(_DROPPED)}
        return {
            **kept,
            "PATH": f"{self.bin}{os.pathsep}{inherited.get('PATH', '')}",
            "VIRTUAL_ENV": str(self.root),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            # Reads as --no-build-isolation: the backend is here, nothing has to be downloaded.
            "PIP_NO_BUILD_ISOLATION": "0",
        }

    def pip(self, *arguments: str) -> None:
        """Run pip; its output is the failure's message."""
        done = subprocess.run(
            [str(self.bin / "pip"), *arguments],
            env=self.variables(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def create(root: Path) -> Environment:
    """Make an environment that shares the running one's packages by links.

    A path file to the running site-packages would bring its vllm-diffspec too, and then nothing
    could be uninstalled.
    """
    # Not resolved: the links of a virtual environment's python lead out of it.
    venv.create(root, with_pip=False, symlinks=True)
    made = Environment(root)
    shared = root / "shared"
    shared.mkdir()
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for item in Path(folder).iterdir():
            if not item.name.startswith((*_OURS, "__pycache__")) and item.suffix != ".pth":
                (shared / item.name).symlink_to(item)
    (made.packages / "shared.pth").write_text(f"{shared}\n")
    pip = made.bin / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{made.bin}/python" -m pip "$@"\n')
    pip.chmod(0o755)
    return made
