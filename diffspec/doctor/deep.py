# SPDX-License-Identifier: Apache-2.0
"""Checks the touch points with vLLM imported; run by the doctor as a process of its own.

Usage: python -m diffspec.doctor.deep PLATFORM

Prints one JSON object on standard output: ``version``, ``rows`` and ``differences``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys

from diffspec.hosts.surface import check_surface
from diffspec.hosts.touch_points import rows_for


def main(platform: str) -> None:
    """Compare the rows for ``platform`` with the host and print the answer."""
    rows = rows_for(platform)
    # What the host prints while it is imported would spoil the answer.
    with contextlib.redirect_stdout(sys.stderr):
        differences = [m.text for m in check_surface(rows)]
        try:
            version = str(getattr(importlib.import_module("vllm"), "__version__", "unknown"))
        except Exception as error:  # whatever a broken host raises
            version = f"unknown ({type(error).__name__})"
    print(json.dumps({"version": version, "rows": len(rows), "differences": differences}))


if __name__ == "__main__":
    main(sys.argv[1])
