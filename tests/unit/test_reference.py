# SPDX-License-Identifier: Apache-2.0
"""The published reference says what the code's own tables say."""

from __future__ import annotations

from pathlib import Path

from diffspec.cli.reference import reference_markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_markdown(), (
        "run: python -m diffspec.cli.reference > docs/reference.md"
    )
