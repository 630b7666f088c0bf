# SPDX-License-Identifier: Apache-2.0
"""The models a question or a launch names, read from their folders where they are here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diffspec.configuration.checkpoint import Checkpoint, load
from diffspec.configuration.places import find
from diffspec.doctor.findings import Finding, error, warning
from diffspec.settings import ConfigError


def read(
    role: str,
    given: Path | None,
    named: str | None,
    revision: str | None,
    environ: Mapping[str, str],
    found: list[Finding],
) -> Checkpoint | None:
    """The model of a ``role``, ``given`` to the doctor or ``named`` by the launch, if it is here.

    What stands in the way joins ``found``: an error where a launch would fail for it too, or where
    the doctor was asked to look.
    """
    name = str(given) if given is not None else named
    if name is None:
        return None
    place = find(name, environ, revision if given is None else None)
    if place.folder is None:
        text = f"the {role} {name}: {place.why}"
        if place.wrong or given is not None:
            found.append(error(f"pair.{role}", text, "correct the path"))
        else:
            fix = f"give its folder with --{role}, or download it first"
            found.append(warning(f"pair.{role}", f"{text}; it was not looked at", fix))
        return None
    try:
        return load(place.folder)
    except ConfigError as failure:
        fix = "give a model folder with its config.json"
        found += [error(f"pair.{role}", problem, fix) for problem in failure.problems]
        return None
