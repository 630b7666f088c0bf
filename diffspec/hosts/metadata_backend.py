# SPDX-License-Identifier: Apache-2.0
"""What pip is given for the build back end of a source package that is only to be looked at.

:mod:`diffspec.hosts.packages` lays this file where ``setuptools.build_meta`` would be. pip asks a
back end for the metadata of what it downloads; this one hands over the PKG-INFO that every source
package carries, so that nothing of the package runs and its build requirements, some of which are
on no public index, are not wanted.
"""

from __future__ import annotations

import shutil
from email.parser import Parser
from pathlib import Path
from typing import Any


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    """The hook of PEP 517; runs in the unpacked package and returns the new folder's name."""
    info = Parser().parsestr(Path("PKG-INFO").read_text(encoding="utf-8"))
    folder = Path(metadata_directory, f"{info['Name']}-{info['Version']}.dist-info")
    folder.mkdir()
    shutil.copyfile("PKG-INFO", folder / "METADATA")
    return folder.name
