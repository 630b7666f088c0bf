# SPDX-License-Identifier: Apache-2.0
"""Checks a configuration file: nesting, the schema, the settings' own rules, the draft's window.

The extension manager stores the file unseen and ignores keys it does not know, so that a misplaced
key starts a server without DiffSpec; here every key has to be in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffspec import schemas
from diffspec.configuration.manager import accepted, host_range
from diffspec.configuration.models import read_model_config, trained_window
from diffspec.configuration.nesting import untangle
from diffspec.hosts.unsupported import LaunchFacts, refusals
from diffspec.keys import normalise, show, whole
from diffspec.settings import ConfigError, DiffSpecSettings, split_keys


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a file (it must be changed) and what is worth knowing about it."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]


def check(document: object) -> Verdict:
    """Judge a parsed configuration file, with the draft's config.json where its folder is here.

    Never raises for a bad file.
    """
    if not isinstance(document, dict):
        return Verdict((f"the file must hold one JSON object, not {show(document)}",), ())
    problems, straight = untangle(document)
    options = straight["launch_options"]
    speculative = options.get("speculative_config") if isinstance(options, dict) else None
    notes: list[str] = []
    if isinstance(speculative, dict):
        problems += _with_our_keys_left_to_settings(straight, speculative)
        more, notes = check_speculative(speculative)
        problems += more
    else:
        problems += schemas.problems("diffspec", straight)
    if not problems:
        # The schema's own word on our keys; a test holds that settings never say less.
        problems += schemas.problems("diffspec", straight)
    version = straight.get("host_version")
    if isinstance(version, str):
        _look_at_host_version(version, problems, notes)
    return Verdict(tuple(problems), tuple(notes))


def check_speculative(config: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Problems and notes of one ``speculative_config`` object, with or without a Manager."""
    ours, host = split_keys(config)
    host = {normalise(key): value for key, value in host.items()}
    on = any(normalise(key) == "draft_context_policy" and ours[key] == "diffspec" for key in ours)
    problems: list[str] = []
    notes: list[str] = []
    depth = whole(host.get("num_speculative_tokens"))
    if "num_speculative_tokens" in host and (depth is None or depth < 1):
        problems.append(
            f"num_speculative_tokens = {show(host['num_speculative_tokens'])}: must be an integer, "
            "at least 1"
        )
        depth = None
    window = None
    if on:
        problems += refusals(_facts(host))
        window = _window(host, notes)
    try:
        settings = DiffSpecSettings.parse(ours, num_speculative_tokens=depth, trained_window=window)
    except ConfigError as error:
        problems += error.problems
    else:
        notes += settings.notes
    if not on:
        notes.append('draft_context_policy is not "diffspec", so DiffSpec stays off')
    elif missing := [
        key for key in ("method", "model", "num_speculative_tokens") if key not in host
    ]:
        notes.append(f"vLLM needs {', '.join(missing)} too, here or as a flag of the command")
    return problems, notes


def _with_our_keys_left_to_settings(
    document: Mapping[str, Any], speculative: Mapping[str, Any]
) -> list[str]:
    """The schema's problems beside our keys, whose problems the settings put in better words."""
    rest = split_keys(speculative)[1]
    options = {**document["launch_options"], "speculative_config": rest}
    return schemas.problems("diffspec", {**document, "launch_options": options})


def _facts(host: Mapping[str, Any]) -> LaunchFacts:
    facts = LaunchFacts(
        method=host.get("method"),
        per_batch_depths=host.get("num_speculative_tokens_per_batch_size"),
        draft_sample_method=host.get("draft_sample_method"),
        rejection_sample_method=host.get("rejection_sample_method"),
    )
    return replace(
        facts,
        heterogeneous_vocab=host.get("use_heterogeneous_vocab") is True,
        parallel_drafting=host.get("parallel_drafting") is True,
        padded_batches=host.get("disable_padded_drafter_batch") is False,
    )


def _window(host: Mapping[str, Any], notes: list[str]) -> int | None:
    """The draft's trained window in tokens as far as it can be seen here."""
    if (limit := whole(host.get("max_model_len"))) is not None:
        return limit
    model = host.get("model")
    if not isinstance(model, str):
        return None
    if not Path(model).is_absolute():
        notes.append(
            f"model = {show(model)}: a hub name, or a path that depends on where the server is "
            "started; the draft was not looked at"
        )
        return None
    if not Path(model).exists():
        notes.append(f"model = {show(model)}: not on this machine; the draft was not looked at")
        return None
    try:
        return trained_window(read_model_config(Path(model)))
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
