# SPDX-License-Identifier: Apache-2.0
"""A configuration file for one target and draft, with the reason for every value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffspec.configuration.check import check
from diffspec.configuration.checkpoint import Checkpoint, read_config
from diffspec.configuration.draft_class import class_problem
from diffspec.configuration.lengths import trained_window
from diffspec.configuration.manager import Override, host_range
from diffspec.configuration.pair_facts import pair_facts
from diffspec.configuration.places import find
from diffspec.hosts.unsupported import NOT_ON_ASCEND, applying
from diffspec.settings import ConfigError, DiffSpecSettings, minimum_budget

DEPTH = 3
_DEFAULTS = DiffSpecSettings.parse({}, num_speculative_tokens=None)


@dataclass(frozen=True, slots=True)
class Choice:
    """One key of the file, its value (None: left out) and why."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """The document to write, its choices in the file's order, and what else to know."""

    document: dict[str, Any]
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]


def propose(
    target: Path,
    draft: Path,
    *,
    host: Override,
    depth: int = DEPTH,
    budget: int | None = None,
    tensor_parallel_size: int = 1,
    environ: Mapping[str, str] | None = None,
) -> Proposal:
    """Choose values for a pair of models from their ``config.json`` alone.

    ``target`` and ``draft`` are folders, or hub names that the local cache has, which ``environ``
    (None: this process's) says where to find. ``depth`` is num_speculative_tokens; ``budget`` in
    tokens replaces the choice made from the draft's trained window.

    Raises:
        ConfigError: a model cannot be read, the two do not fit together, or no value fits.
    """
    environ = os.environ if environ is None else environ
    wide, narrow = _read(target, environ), _read(draft, environ)
    notes = _judge(wide, narrow, host.name, tensor_parallel_size)
    choices = [
        Choice("method", "eagle3", "the one method DiffSpec drafts with"),
        _model(draft, narrow),
        Choice(
            "num_speculative_tokens",
            depth,
            "few enough that most drafted tokens can be accepted; raise it where the log shows "
            "that the last position is still accepted often"
            if depth == DEPTH
            else "as asked for",
        ),
        Choice("draft_context_policy", "diffspec", "turns DiffSpec on"),
        *_sizes(trained_window(narrow.text), depth, budget),
    ]
    if tensor_parallel_size > 1:
        choices.append(
            Choice(
                "draft_tensor_parallel_size",
                tensor_parallel_size,
                "the draft runs on the target's ranks, and a lane with several wants it said",
            )
        )
    document: dict[str, Any] = {
        "launch_options": {"speculative_config": {c.key: c.value for c in choices}}
    }
    choices.append(Choice("host_version", host.version, host.why))
    if host.version is not None:
        document["host_version"] = host.version
    verdict = check(document, environ)
    if verdict.problems:
        raise ConfigError(*verdict.problems)
    return Proposal(document, tuple(choices), tuple(notes))


def _read(model: Path, environ: Mapping[str, str]) -> Checkpoint:
    place = find(str(model), environ)
    if place.folder is None:
        raise ConfigError(f"{model}: {place.why}; give the folder of a model that is here")
    return read_config(place.folder)


def _judge(target: Checkpoint, draft: Checkpoint, host: str, ranks: int) -> list[str]:
    """Notes on a pair that fits, with what only the launch can tell.

    Raises:
        ConfigError: it does not fit.
    """
    facts = replace(pair_facts(target, draft), tensor_parallel_size=ranks)
    problem = class_problem(draft)
    problems = [problem] if problem else []
    notes: list[str] = []
    for row in applying(facts):
        on_vllm = row.id in NOT_ON_ASCEND
        if on_vllm and host == host_range()[0]:
            continue
        # Left to the command line, or to a host that is not known yet.
        left = row.id == "multimodal" or (on_vllm and host == "none")
        (notes if left else problems).append(row.message.format(f=facts))
    if problems:
        raise ConfigError(*problems)
    return notes


def _model(given: Path, draft: Checkpoint) -> Choice:
    if draft.path == given:
        folder = str(given.absolute())
        return Choice("model", folder, "the draft's folder; absolute, wherever the server is")
    return Choice("model", str(given), "the draft's hub name; read from the local cache here")


def _sizes(window: int | None, depth: int, asked: int | None) -> list[Choice]:
    """Budget, chunk size and interval: the usual ones, or the nearest that the window allows."""
    usual = _DEFAULTS.token_budget
    room = min(window or usual, usual) if asked is None else asked
    chunk, interval = _fit(room, depth, window)
    budget = room // chunk * chunk if asked is None else asked
    why_chunk = why_interval = "the default"
    if chunk != _DEFAULTS.chunk_size:
        why_chunk = f"the largest that fits into {room} tokens"
    if interval != _DEFAULTS.retrieval_interval:
        why_interval = f"shorter than the default, so that growth fits into {room} tokens"
    return [
        Choice("diffspec_token_budget", budget, _why_budget(window, asked)),
        Choice("diffspec_chunk_size", chunk, why_chunk),
        Choice("diffspec_retrieval_interval", interval, why_interval),
    ]


def _fit(room: int, depth: int, window: int | None) -> tuple[int, int]:
    """Chunk size and interval for a budget of at most ``room`` tokens.

    Where none fit, ConfigError if the window is to blame, else the defaults: the check of the
    whole file then names the least budget.
    """
    for interval in (_DEFAULTS.retrieval_interval, 1):
        for chunk in (_DEFAULTS.chunk_size, 32, 16):
            if room // chunk * chunk >= minimum_budget(chunk, interval, depth):
                return chunk, interval
    settings = DiffSpecSettings.parse({}, num_speculative_tokens=depth, trained_window=window)
    return settings.chunk_size, settings.retrieval_interval


def _why_budget(window: int | None, asked: int | None) -> str:
    usual = _DEFAULTS.token_budget
    if asked is not None:
        return "as asked for"
    if window is None:
        return (
            "the default: the draft's config.json does not say what length it was made for; set it "
            "to that length if you know it"
        )
    if window > usual:
        return (
            f"the default: the draft's config.json says {window} positions, but drafts are often "
            "trained on less; set it to the real length if you know it"
        )
    return f"the draft was made for {window} positions (its config.json), in whole chunks"
