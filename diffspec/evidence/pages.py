# SPDX-License-Identifier: Apache-2.0
"""The pages in ``docs/evidence``, written from the records.

python -m diffspec.evidence.pages        (in a checkout; a test keeps the pages current)
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diffspec.evidence.records import CHECKOUT, Record, metric, quantity, statements

FOLDER = CHECKOUT / "docs" / "evidence"
_WRITTEN = "Written by `python -m diffspec.evidence.pages`; a test keeps it current."

_KINDS = {
    "historical": "Historical: another build, not this release, not measured again here.",
    "qualification": "A qualification: one model pair judged on one lane.",
}

_INDEX = """# Evidence

{written}

What was measured, by whom and with what, is kept as records: JSON files in `evidence/`, described
by [`schemas/evidence.schema.json`](../../schemas/evidence.schema.json). Their `kind` tells them
apart:

- `historical`: measured by somebody with another build. It says nothing about a release.
- `qualification`: one model pair judged on one lane. Only such a record makes a pair compatible.
  [`diffspec qualify`](../qualify.md) writes one from what a running server does.
- `benchmark`: written by this project's own programs (`python -m benchmarks...`) with command,
  commit, versions and machine. It carries no verdict and qualifies no pair; README says what they
  show.

The first two carry a verdict about speed in the cell that was measured, in the words of the
extension manager's catalogue (beneficial, neutral, inconclusive, not-recommended-for-tested-cell),
and say what was not verified here.

```bash
diffspec evidence validate [FILE...]   # check records; exit 2 if one is wrong
diffspec evidence list [--json]        # show figures, verdicts and what was not verified
diffspec evidence catalog --repository URL   # this extension's entry for the Manager's catalogue
```

"""

_CATALOG = """
The catalogue entry (`vllm-hust.extension-catalog/v1`) speaks of the commit it names, in the
repository it is given: a URL that others can clone. A record counts for its
`functional_qualification` only if its `subject.releases` names this release; with none, the word is
`unverified` and `enablement.allowed` is false, which the format demands. Historical records never
become `tested_effects`; those that do bring along what was not verified here.

To add a record: put the file into `evidence/`, run `diffspec evidence validate` and
`python -m diffspec.evidence.pages`, and commit the record and the pages together.
"""

_MODELS = """# Compatible models

{written}

A target and a draft are a compatible pair only through a qualification record with that state.
Compatible does not mean faster, and holds for the lane of the record. The start-up checks
([reference](../reference.md)) let more pairs start than are listed here; those are unproven.

"""


def pages(records: Sequence[Record]) -> dict[str, str]:
    """File name to contents of every page of ``docs/evidence``, for records in this order."""
    out = {f"{record.data['id']}.md": page(record.data) for record in records}
    return out | {"README.md": index(records), "models.md": models(records)}


def index(records: Sequence[Record]) -> str:
    """The list of records, and how to add one."""
    rows = [
        (
            f"[{r.data['title']}]({r.data['id']}.md)",
            r.kind,
            r.data["date"] or "not stated",
            ", ".join(r.data["subject"]["releases"]) or "none: another build",
            r.data["verdict"]["word"],
        )
        for r in records
    ]
    head = _INDEX.format(written=_WRITTEN)
    end = "\nPairs: [models.md](models.md).\n"
    return (
        head
        + table(("record", "kind", "date", "releases measured", "verdict"), rows)
        + end
        + _CATALOG
    )


def models(records: Sequence[Record]) -> str:
    """The list of compatible pairs, and of drafts known not to fit."""
    judged = [r.data for r in records if r.kind == "qualification"]
    compatible = [
        (
            d["models"]["target"]["name"],
            d["models"]["draft"]["name"],
            f"compatible, performance {d['pair']['performance']}, "
            + ("recommended" if d["pair"]["recommended"] else "not recommended"),
            ", ".join(d["subject"]["releases"]) or "none: another build",
            f"[{d['title']}]({d['id']}.md)",
        )
        for d in judged
        if d["pair"]["state"] == "compatible"
    ]
    rejected = [
        (
            f"[{d['title']}]({d['id']}.md)",
            draft["name"],
            _count(draft["vocabulary"]),
            draft["reason"],
        )
        for d in judged
        for draft in d.get("rejected_drafts", ())
    ]
    text = _MODELS.format(written=_WRITTEN)
    text += table(("target", "draft", "state", "releases it was judged with", "record"), compatible)
    if rejected:
        text += "\n## Rejected drafts\n\n"
        text += table(("lane", "draft", "vocabulary", "reason"), rejected)
    return text


def page(data: Mapping[str, Any]) -> str:
    """One record as a page."""
    verdict, pair, function = data["verdict"], data["pair"], data["function"]
    state = pair["state"].replace("-", " ")
    facts = [
        ("Measured by", data["measured_by"]),
        ("When", data["date"] or "not stated"),
        ("What", f"{data['subject']['name']}. {data['subject']['note']}"),
        ("Hardware", f"{data['where']['hardware']}; ranks: {data['where']['ranks']}"),
        ("Host", "; ".join(map(_host, data["where"]["hosts"])) or "not stated"),
        ("Target", _model(data["models"]["target"])),
        ("Draft", _model(data["models"]["draft"])),
    ]
    if digest := data["models"].get("checkpoint_sha256"):
        facts.append(("Checkpoint SHA-256", f"`{digest}`"))
    facts += [(name.replace("_", " "), _shown(value)) for name, value in data["settings"].items()]
    parts = [
        f"# {data['title']}",
        _WRITTEN + f" Record: [`evidence/{data['id']}.json`](../../evidence/{data['id']}.json).",
        f"**{_KINDS[data['kind']]}**",
        fill(data["summary"]),
        "## Verdict",
        fill(f"**{verdict['word']}**, for this cell: {verdict['cell']}."),
        fill(verdict["reason"]),
        fill(
            f"Function: {function['status']}; recovery after a fault: {function['recovery']}. "
            f"Pair: {state}, performance {pair['performance']}, "
            + ("recommended." if pair["recommended"] else "not recommended.")
        ),
        "## What and where",
        table(("", ""), facts).rstrip(),
    ]
    if data["command"]:
        variables = [f"{name}={value} \\" for name, value in data["environment"].items()]
        lines = [*variables, *_wrapped_command(data["command"])]
        parts += ["Command, with TARGET and DRAFT for the model paths:", fenced("bash", lines)]
    parts += ["## Figures", *_figures(data)]
    if data["checks"]:
        parts += ["## Checks", _checks(data["checks"]).rstrip()]
    if requirements := data.get("requirements"):
        parts += ["## Requirements of the lane", bullets(requirements)]
    if rejected := data.get("rejected_drafts"):
        text = [
            f"{d['name']} (vocabulary {_count(d['vocabulary'])}): {d['reason']}" for d in rejected
        ]
        parts += ["Rejected drafts:", bullets(text)]
    parts += ["## Not verified here", bullets(data["not_verified_here"])]
    return "\n\n".join(parts) + "\n"


def _checks(checks: Sequence[Mapping[str, Any]]) -> str:
    """What each check came to, with what was seen where any says so."""
    if not any("detail" in check for check in checks):
        return table(("check", "outcome"), [(c["name"], c["outcome"]) for c in checks])
    rows = [(c["name"], c["outcome"], c.get("detail", "")) for c in checks]
    return table(("check", "outcome", "what was seen"), rows)


def _figures(data: Mapping[str, Any]) -> list[str]:
    """One table per set of cell names, a row per cell and metric, a column per arm; sources."""
    tables: dict[tuple[str, ...], dict[tuple[str, ...], dict[str, str]]] = {}
    sources: dict[str, dict[str, None]] = {}
    for measurement in data["measurements"]:
        cell = measurement["cell"]
        rows = tables.setdefault(tuple(cell), {})
        for figure in measurement["figures"]:
            row = rows.setdefault((*cell.values(), metric(figure)), {})
            row[figure["arm"]] = quantity(figure)
            what = f"{figure['arm']} ({', '.join(cell.values())})"
            sources.setdefault(measurement["source"], {})[what] = None
    out = []
    for names, rows in tables.items():
        arms = list(dict.fromkeys(arm for row in rows.values() for arm in row))
        body = [(*labels, *(row.get(arm, "") for arm in arms)) for labels, row in rows.items()]
        out.append(table((*names, "figure", *arms), body).rstrip())
    if len(sources) == 1:
        return [*out, f"Source of all figures: {data['sources'][next(iter(sources))]}."]
    said = [f"{data['sources'][name]}: {', '.join(what)}" for name, what in sources.items()]
    return [*out, "Sources:", bullets(said)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, ended by a newline."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)]) + "\n"


def bullets(lines: Iterable[str]) -> str:
    """A Markdown list."""
    return "\n".join(textwrap.fill(f"- {line}", 100, subsequent_indent="  ") for line in lines)


def fill(text: str) -> str:
    """A paragraph in lines of at most 100 characters; words stay whole."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def fenced(language: str, lines: Iterable[str]) -> str:
    """A block of code."""
    return "\n".join([f"```{language}", *lines, "```"])


def _wrapped_command(command: str) -> list[str]:
    """A command with each option on a line of its own."""
    first, *options = command.split(" --")
    lines = [first, *(f"  --{option}" for option in options)]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _model(model: Mapping[str, Any]) -> str:
    parts = [model["name"]]
    if "kind" in model:
        parts.append(model["kind"])
    if "vocabulary" in model:
        parts.append(f"vocabulary {_count(model['vocabulary'])}")
    return ", ".join(parts)


def _host(host: Mapping[str, Any]) -> str:
    version = host["version"] or "version not stated"
    return f"{host['name']} {version}" + (f", commit `{host['commit']}`" if host["commit"] else "")


def _count(tokens: int) -> str:
    return f"{tokens:,}".replace(",", " ")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages(statements()).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)


if __name__ == "__main__":
    main()
