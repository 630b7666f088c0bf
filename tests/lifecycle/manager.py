# SPDX-License-Identifier: Apache-2.0
"""The `vllm-hust-ext` command, and packages for it to find."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffspec.environment import EXTENSION_ID
from tests.lifecycle.environment import Environment

HOST = "vllm-ascend"
HOST_VERSION = "0.28.0rc1"
SPECULATIVE = {
    "method": "eagle3",
    "model": "/models/draft",
    "num_speculative_tokens": 3,
    "draft_context_policy": "diffspec",
    "diffspec_token_budget": 2048,
}
_ERROR = "vllm-hust-ext: error: "


@dataclass(frozen=True)
class Manager:
    """The command with one state file; ``packages`` are folders it finds distributions in."""

    environment: Environment
    home: Path
    packages: tuple[Path, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.home / "manager" / "config.json"

    def beside(self, *packages: Path) -> Manager:
        """The same with further packages installed."""
        return replace(self, packages=(*self.packages, *packages))

    def with_host(self, version: str) -> Manager:
        """The same with this version of the host distribution installed."""
        return self.beside(write_distribution(self.home / f"host-{version}", HOST, version))

    def exporting(self, **variables: str) -> Manager:
        """The same in a shell with these variables set."""
        return replace(self, extra={**self.extra, **variables})

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        """All variables the command is started with."""
        # The environment's own packages too: a Manager on the PATH has a Python of its own.
        visible = [*map(str, self.packages), str(self.environment.packages)]
        return {
            **self.environment.variables(inherited),
            "PYTHONPATH": os.pathsep.join(visible),
            "VLLM_HUST_EXT_CONFIG": str(self.state),
            **self.extra,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The running command, with pipes for its output."""
        return subprocess.Popen(
            ["vllm-hust-ext", *arguments],
            env=self.variables(),
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def ok(self, *arguments: str) -> str:
        """Standard output of a command that has to succeed."""
        code, out, err = self.run(*arguments)
        assert code == 0, err
        return out.strip()

    def json(self, *arguments: str) -> Any:
        """The same, decoded."""
        return json.loads(self.ok(*arguments))

    def refused(self, *arguments: str) -> str:
        """The message of a command that has to fail as the Manager's commands do."""
        code, out, err = self.run(*arguments)
        assert (code, out) == (2, ""), (code, out, err)
        assert err.startswith("usage: "), err
        assert _ERROR in err, err
        return err.partition(_ERROR)[2].strip()

    def configured(self, document: object = None) -> Manager:
        """Itself, with DiffSpec configured (by default with ``SPECULATIVE``) and enabled."""
        # The default state is written by the command once and copied from then on.
        kept = self.environment.root / "configured.json"
        if document is None and kept.exists():
            self.state.parent.mkdir(exist_ok=True)
            shutil.copy(kept, self.state)
            return self
        content = document or {"launch_options": {"speculative_config": SPECULATIVE}}
        file = self.home / "diffspec.json"
        file.write_text(json.dumps(content))
        self.ok("extension", "configure", EXTENSION_ID, "--file", str(file))
        self.ok("extension", "enable", EXTENSION_ID)
        if document is None:
            shutil.copy(self.state, kept)
        return self

    def dry_run(self, *command: str) -> Any:
        """What would be launched."""
        return self.json("run", "--dry-run", "--", *command)


def write_distribution(folder: Path, name: str, version: str, **files: str) -> Path:
    """A folder in which a distribution is installed; ``files`` go into its metadata."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    for file, text in {"METADATA": head, **files}.items():
        (info / file).write_text(text)
    return folder


def write_extension(
    folder: Path,
    name: str,
    *,
    plugin: str = "other",
    manifests: tuple[str, ...] = ("vllm-hust-extension-v0.2.json",),
    value: str = "other_manifest",
    entry_points: bool = True,
    **changes: object,
) -> Path:
    """A folder in which a small extension called ``name`` is installed.

    ``changes`` are fields of its manifest, which is good without them. Its package ends the
    process that imports it.
    """
    document = {
        "schema_version": "0.2-experimental",
        "extension_id": name,
        "extension_version": "1.0",
        "kind": "in_process_plugin",
        "host": {"provider": "vllm", "name": HOST, "version_range": ">=0.25.1rc1,<1"},
        "runtime": {
            "type": "python",
            "process_scope": "engine",
            "isolation": "trusted_in_process",
        },
        "lifecycle_owner": "vllm",
        "protocols": [],
        "implementation": [
            {"type": "python_entry_point", "group": "vllm.general_plugins", "name": plugin}
        ],
        "requires_services": [],
        "activation": {"entry_points": [{"group": "vllm.general_plugins", "name": plugin}]},
        **changes,
    }
    package = folder / "other_manifest"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    for file in manifests:
        (package / file).write_text(json.dumps(document))
    record = ["other_manifest/__init__.py", *(f"other_manifest/{file}" for file in manifests)]
    entries = f"[vllm_hust.extension_bundles]\n{name} = {value}\n"
    if entry_points:
        entries += f"[vllm.general_plugins]\n{plugin} = other_manifest:register\n"
    return write_distribution(
        folder,
        "other-extension",
        "1.0",
        RECORD="".join(f"{line},,\n" for line in record),
        **{"entry_points.txt": entries},
    )
