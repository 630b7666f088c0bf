# SPDX-License-Identifier: Apache-2.0
"""Checks the touch points with vLLM imported; run by the doctor as a process of its own.

Usage: python -m diffspec.doctor.deep DEVICE

Prints one JSON object on standard output: ``version``, ``rows`` and ``differences``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys

from diffspec.hosts.releases import hosts_of
from diffspec.hosts.surface import check_surface, installed_version, rows_to_check


def main(platform: str) -> None:
    """Compare the rows for a device type with the host and print the answer."""
    # What the host prints while it is imported would spoil the answer.
    with contextlib.redirect_stdout(sys.stderr):
        known = {h: installed_version(h, importlib.import_module)[0] for h in hosts_of(platform)}
        rows = rows_to_check(platform, known)
        differences = [m.text for m in check_surface(rows)]
    version = " with vLLM-Ascend ".join(known.values())
    print(json.dumps({"version": version, "rows": len(rows), "differences": differences}))


if __name__ == "__main__":
    main(sys.argv[1])
