# SPDX-License-Identifier: Apache-2.0
"""Findings of the doctor about a pair of model folders, for its tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from diffspec.doctor.diagnose import Question, diagnose
from diffspec.doctor.findings import Finding

from .doctor_models import DRAFT, LLAMA, changed, write_draft, write_model
from .doctor_python import surroundings

Judge = Callable[..., list[Finding]]


def judge_pair(
    folder: Path,
    target: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = None,
    *,
    platform: Any = "cpu",
    **file: Any,
) -> list[Finding]:
    """Findings about a pair written into ``folder``.

    ``target`` and ``draft`` change the two configurations, further arguments the draft's file.
    """
    write_model(folder / "t", changed(LLAMA, target))
    write_draft(folder / "d", changed(DRAFT, draft), **file)
    return pair_findings(folder, platform)


def pair_findings(folder: Path, platform: Any) -> list[Finding]:
    """Findings about the pair in ``folder``, without those about the machine."""
    question = Question(target=folder / "t", draft=folder / "d", platform=platform)
    report = diagnose(question, surroundings(folder))
    return [f for f in report.findings if f.area in ("pair", "lane")]


def wrong(found: list[Finding], level: str = "error") -> list[Finding]:
    """The findings of one level."""
    return [f for f in found if f.level == level]
