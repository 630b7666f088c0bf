# SPDX-License-Identifier: Apache-2.0
"""The published pages say what the schema and the code's own tables say."""

from __future__ import annotations

from pathlib import Path

from diffspec.cli.configuration_page import configuration_markdown
from diffspec.cli.hosts_page import hosts_markdown
from diffspec.cli.reference import reference_markdown

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_reference_is_current() -> None:
    assert (DOCS / "reference.md").read_text(encoding="utf-8") == reference_markdown(), (
        "run: python -m diffspec.cli.reference > docs/reference.md"
    )


def test_the_configuration_page_is_current() -> None:
    assert (DOCS / "configuration.md").read_text(encoding="utf-8") == configuration_markdown(), (
        "run: python -m diffspec.cli.reference configuration > docs/configuration.md"
    )


def test_the_page_of_host_releases_is_current() -> None:
    assert (DOCS / "hosts.md").read_text(encoding="utf-8") == hosts_markdown(), (
        "run: python -m diffspec.cli.reference hosts > docs/hosts.md"
    )
