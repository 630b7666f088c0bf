# SPDX-License-Identifier: Apache-2.0
"""Checks a configuration file: nesting, the schema, the settings' own rules, the draft's window.

The extension manager stores the file unseen and ignores keys it does not know, so that a misplaced
key starts a server without DiffSpec; here every key has to be in its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffspec import schemas
from diffspec.configuration.checkpoint import Checkpoint, read_config
from diffspec.configuration.draft_class import class_problem
from diffspec.configuration.lengths import trained_window
from diffspec.configuration.manager import accepted, host_range
from diffspec.configuration.nesting import untangle
from diffspec.configuration.pair_facts import pair_facts
from diffspec.configuration.places import find
from diffspec.configuration.speculative import Speculative
from diffspec.hosts.unsupported import refusals
from diffspec.keys import show, split_keys
from diffspec.settings import ConfigError, DiffSpecSettings


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a file (it must be changed), what may be, and what is worth knowing.

    A warning says after its last semicolon what to do.
    """

    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check(document: object, environ: Mapping[str, str] | None = None) -> Verdict:
    """Judge a parsed configuration file, with the draft's config.json where it is here.

    ``environ`` says where the local cache of hub models is; None takes this process's. Never
    raises for a bad file.
    """
    if not isinstance(document, dict):
        return Verdict((f"the file must hold one JSON object, not {show(document)}",))
    problems, straight = untangle(document)
    options = straight["launch_options"]
    speculative = options.get("speculative_config") if isinstance(options, dict) else None
    warnings: tuple[str, ...] = ()
    notes: list[str] = []
    if isinstance(speculative, dict):
        problems += _with_our_keys_left_to_settings(straight, speculative)
        verdict = check_speculative(speculative, os.environ if environ is None else environ)
        problems += verdict.problems
        warnings, notes = verdict.warnings, list(verdict.notes)
    else:
        problems += schemas.problems("diffspec", straight)
    if not problems:
        # The schema's own word on our keys; a test holds that settings never say less.
        problems += schemas.problems("diffspec", straight)
    version = straight.get("host_version")
    if isinstance(version, str):
        _look_at_host_version(version, problems, notes)
    return Verdict(tuple(problems), warnings, tuple(notes))


def check_speculative(config: Mapping[str, Any], environ: Mapping[str, str]) -> Verdict:
    """Judge one ``speculative_config`` object, with or without a Manager."""
    spec = Speculative.of(config)
    problems: list[str] = []
    warnings: list[str] = []
    notes: list[str] = []
    if "num_speculative_tokens" in spec.host and spec.depth is None:
        given = show(spec.host["num_speculative_tokens"])
        problems.append(f"num_speculative_tokens = {given}: must be an integer, at least 1")
    draft = _draft(spec, environ, notes) if spec.active else None
    if spec.active:
        problems += refusals(replace(pair_facts(None, draft), **spec.facts()))
        if draft is not None and (problem := class_problem(draft)):
            problems.append(problem)
    window = spec.max_model_len
    if window is None and draft is not None:
        window = trained_window(draft.text)
    try:
        settings = DiffSpecSettings.parse(
            spec.ours, num_speculative_tokens=spec.depth, trained_window=window
        )
    except ConfigError as error:
        problems += error.problems
    else:
        notes += settings.notes
    if not spec.active:
        warnings.append(
            'draft_context_policy is not "diffspec", so DiffSpec stays off; set it to turn it on'
        )
    elif missing := [
        key for key in ("method", "model", "num_speculative_tokens") if key not in spec.host
    ]:
        warnings.append(
            f"vLLM needs {', '.join(missing)} too; write it here, or as a flag of the command"
        )
    return Verdict(tuple(problems), tuple(warnings), tuple(notes))


def _with_our_keys_left_to_settings(
    document: Mapping[str, Any], speculative: Mapping[str, Any]
) -> list[str]:
    """The schema's problems beside our keys, whose problems the settings put in better words."""
    rest = split_keys(speculative)[1]
    options = {**document["launch_options"], "speculative_config": rest}
    return schemas.problems("diffspec", {**document, "launch_options": options})


def _draft(spec: Speculative, environ: Mapping[str, str], notes: list[str]) -> Checkpoint | None:
    """The draft as far as it can be seen here; what stands in the way is a note."""
    if spec.model is None:
        return None
    name = f"model = {show(spec.model)}"
    place = find(spec.model, environ, spec.revision)
    if place.folder is None:
        notes.append(f"{name}: {place.why}; the draft was not looked at")
        return None
    if place.folder == Path(spec.model) and not place.folder.is_absolute():
        notes.append(f"{name}: a path that depends on where the server is started")
    try:
        return read_config(place.folder)
    except ConfigError as error:
        notes += error.problems
        return None


def _look_at_host_version(version: str, problems: list[str], notes: list[str]) -> None:
    name, versions = host_range()
    if accepted(version):
        notes.append(
            f"host_version = {version}: the Manager takes this in place of {name}'s real version; "
            "let `diffspec doctor` check the real host"
        )
    elif accepted(version) is False:
        problems.append(
            f"host_version = {version}: outside the manifest's range for {name}, {versions}, so "
            "the Manager would refuse to launch"
        )
