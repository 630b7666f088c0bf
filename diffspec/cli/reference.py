# SPDX-License-Identifier: Apache-2.0
"""The reference page, written from the tables that the code itself obeys.

python -m diffspec.cli.reference > docs/reference.md
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from diffspec.hosts.surface import SUPPORTED, TESTED
from diffspec.hosts.touch_points import TOUCH_POINTS
from diffspec.hosts.unsupported import UNSUPPORTED
from diffspec.keys import KEYS

_HEAD = """# Reference

Written by `python -m diffspec.cli.reference` from the tables in `diffspec/keys.py`,
`diffspec/hosts/touch_points.py` and `diffspec/hosts/unsupported.py`; a test keeps it current.
"""

_KEYS = """## Keys of `--speculative-config`

All sit inside the JSON object beside vLLM's own keys; dashes and underscores are the same. A value
you give is used as it is or refused; a *default* that does not fit the draft or the depth is
adjusted, and the log says so.
"""

_REFUSED = """## Refused at start

Technically unsupported launches are refused, all problems of a stage in one message. Beside these
rows the worker refuses, once the draft is loaded, a draft class without a part DiffSpec calls, one
whose output differs from what its parts give, and page layouts it cannot read.
"""

_TOUCHED = """## Touch points

Every place where DiffSpec meets vLLM. Each is checked by name and signature when a launch asks for
DiffSpec; a launch that does not is not touched. *Wrapped* calls through, *bound* is set on one
instance, *overridden* is a subclass of vLLM's own.
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)]) + "\n"


def reference_markdown() -> str:
    """The whole page."""
    keys = _table(
        ("key", "default", "allowed", "meaning"),
        ((f"`{k.key}`", f"`{json.dumps(k.default)}`", k.allowed, k.meaning) for k in KEYS),
    )
    refused = _table(
        ("id", "what", "judged"),
        (
            (
                f"`{row.id}`",
                row.condition,
                "before weights load" if row.where == "config" else "when the models are loaded",
            )
            for row in UNSUPPORTED
        ),
    )
    lines = ", ".join(f"{major}.{minor}.x" for major, minor in SUPPORTED)
    hosts = (
        f"Accepted vLLM releases: {lines}. Tested: {', '.join(TESTED)}, CPU build. Rows marked "
        "(cuda) hold against the source of that release; nothing was run on a GPU yet.\n"
    )
    touched = _table(
        ("where", "how", "what", "why"),
        (
            (
                f"`{p.target}`" if p.platform == "any" else f"`{p.target}` ({p.platform})",
                p.kind,
                p.what,
                p.why,
            )
            for p in TOUCH_POINTS
        ),
    )
    return "\n".join([_HEAD, _KEYS, keys, _REFUSED, refused, _TOUCHED, hosts, touched])


if __name__ == "__main__":
    print(reference_markdown(), end="")
