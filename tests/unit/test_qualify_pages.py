# SPDX-License-Identifier: Apache-2.0
"""The pages about qualification name what the code has, and the owner's command as it is."""

from __future__ import annotations

import json
import re
import shlex

import typer

from diffspec.cli.main import app
from diffspec.cli.qualify.matrix import CHECKS, DRAFTING
from diffspec.evidence.records import CHECKOUT

QUALIFY = (CHECKOUT / "docs" / "qualify.md").read_text(encoding="utf-8")
ASCEND = (CHECKOUT / "docs" / "ascend.md").read_text(encoding="utf-8")
RECORD = CHECKOUT / "evidence" / "sage-mate-20260904-tp4-graph.json"


def options() -> set[str]:
    command = typer.main.get_command(app).commands["qualify"]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts if name[:2] == "--"}


def blocks(page: str) -> list[list[str]]:
    """The words of every block of commands."""
    found = re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [shlex.split(block.replace("\\\n", " "), comments=True) for block in found]


def test_every_check_and_option_is_described() -> None:
    rows = {line.split("|")[1].strip() for line in QUALIFY.splitlines() if line.startswith("| ")}
    assert {*CHECKS, DRAFTING} <= rows
    assert len(options()) > 15
    assert {option for option in options() - {"--help"} if f"`{option}" not in QUALIFY} == set()


def test_the_runbook_uses_options_there_are() -> None:
    (command,) = (words for words in blocks(ASCEND) if words[:2] == ["diffspec", "qualify"])
    assert {word for word in command if word.startswith("--")} - options() <= {"--version"}


def test_the_runbook_serves_as_the_owner_did_and_without_images() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    variables = [f"{name}={value}" for name, value in record["environment"].items()]
    wanted = [*variables, *shlex.split(record["command"])]
    wanted.insert(wanted.index("TARGET") + 1, "--language-model-only")
    assert wanted in blocks(ASCEND)
    doctor = next(words for words in blocks(ASCEND) if "doctor" in words)
    assert doctor[doctor.index("--") + 1 :] == wanted[len(variables) :]
