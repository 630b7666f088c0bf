# SPDX-License-Identifier: Apache-2.0
"""The Manager section of README.md as steps that can be run and compared."""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from pathlib import Path

HEADING = "## Under the Extension Manager"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Step:
    """One block of commands, and what README says they print (None where it does not say)."""

    commands: str
    prints: str | None

    def differs(self, output: str) -> str | None:
        """None if ``output`` is what README says, with ``...`` for anything; else both texts."""
        if self.prints is None:
            return None
        # The example is one only for the checker's sake; it compares the two texts alone.
        example = doctest.Example("", self.prints)
        checker = doctest.OutputChecker()
        if checker.check_output(example.want, output, _FLAGS):
            return None
        return f"{self.commands}\n{checker.output_difference(example, output, 0)}"


def steps(readme: Path) -> list[Step]:
    """The blocks of the section in order, as they stand."""
    text = readme.read_text(encoding="utf-8")
    section = text.partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    found: list[Step] = []
    for kind, block in _BLOCK.findall(section):
        if kind == "bash":
            found.append(Step(block.strip(), None))
        else:
            assert kind == "text", kind
            assert found[-1].prints is None, "two outputs of one block"
            found[-1] = Step(found[-1].commands, block)
    assert found, f"no section {HEADING!r} in {readme}"
    return found
