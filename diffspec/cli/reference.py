# SPDX-License-Identifier: Apache-2.0
"""Three pages, written from the schema and the tables that the code itself obeys.

python -m diffspec.cli.reference > docs/reference.md
python -m diffspec.cli.reference configuration > docs/configuration.md
python -m diffspec.cli.reference hosts > docs/hosts.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from diffspec.configuration import explain
from diffspec.evidence.pages import table
from diffspec.hosts.launch import Unsupported
from diffspec.hosts.releases import SUPPORTED, TESTED, UNPUBLISHED, tested
from diffspec.hosts.touch_point import TouchPoint
from diffspec.hosts.touch_points import TOUCH_POINTS
from diffspec.hosts.unsupported import NOT_ON_ASCEND, UNSUPPORTED

_HEAD = """# Reference

Written by `python -m diffspec.cli.reference` from `schemas/diffspec.schema.json` and the tables in
`diffspec/hosts/*_points.py` and `diffspec/hosts/unsupported.py`; a test keeps it current.
"""

_KEYS = """## Keys of `--speculative-config`

All sit inside the JSON object beside vLLM's own keys; dashes and underscores are the same. A value
you give is used as it is or refused; a *default* that does not fit the draft or the depth is
adjusted, and the log says so. More about each, and the file that holds them for the extension
manager: [configuration.md](configuration.md).
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

_ASCEND = """## Touch points on Ascend

Checked beside vLLM's own where the device is an NPU. Releases in brackets: the row is for these.
Release by release: [hosts.md](hosts.md).
"""


def key_table(items: Iterable[explain.Explained]) -> str:
    """A Markdown table of keys, as the schema describes them."""
    return table(
        ("key", "default", "allowed", "meaning"),
        (
            (f"`{k.key}`", f"`{k.default}`" if k.default else "", k.allowed, k.meaning)
            for k in items
        ),
    )


def _only_on(row: Unsupported) -> str:
    if row.platform != "any":
        return f" ({row.platform})"
    return " (not npu)" if row.id in NOT_ON_ASCEND else ""


def reference_markdown() -> str:
    """The whole page."""
    keys = key_table(item for item in explain.all_keys() if item.ours)
    refused = table(
        ("id", "what", "judged"),
        (
            (
                f"`{row.id}`{_only_on(row)}",
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
    touched = _touch_table(p for p in TOUCH_POINTS if p.platform != "npu")
    ascend = _touch_table(p for p in TOUCH_POINTS if p.platform == "npu")
    pairs = f"Tested: {tested('npu')}; nothing was run on an NPU yet. {UNPUBLISHED}.\n"
    parts = [_HEAD, _KEYS, keys, _REFUSED, refused, _TOUCHED, hosts, touched]
    return "\n".join([*parts, _ASCEND, pairs, ascend])


def _touch_table(points: Iterable[TouchPoint]) -> str:
    return table(
        ("where", "how", "what", "why"),
        ((f"`{p.target}`{_restriction(p)}", p.kind, p.what, p.why) for p in points),
    )


def _restriction(point: TouchPoint) -> str:
    limits = [point.platform] if point.platform not in ("any", "npu") else []
    limits += [point.releases] if point.releases else []
    return f" ({', '.join(limits)})" if limits else ""


def _main(arguments: Sequence[str]) -> None:
    # The configuration page needs the tables above.
    from diffspec.cli.configuration_page import configuration_markdown
    from diffspec.cli.hosts_page import hosts_markdown

    pages = {"configuration": configuration_markdown, "hosts": hosts_markdown}
    if len(arguments) > 1 or not set(arguments) <= set(pages):
        raise SystemExit(f"usage: python -m diffspec.cli.reference [{'|'.join(pages)}]")
    write = pages[arguments[0]] if arguments else reference_markdown
    print(write(), end="")


if __name__ == "__main__":
    _main(sys.argv[1:])
