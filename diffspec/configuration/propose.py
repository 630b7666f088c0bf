# SPDX-License-Identifier: Apache-2.0
"""A configuration file for one target and draft, with the reason for every value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffspec.configuration.check import check
from diffspec.configuration.manager import Override
from diffspec.configuration.models import pair_facts, read_model_config, trained_window
from diffspec.hosts.unsupported import LaunchFacts, refusals
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
) -> Proposal:
    """Choose values for a pair of model folders from their ``config.json`` alone.

    ``depth`` is num_speculative_tokens; ``budget`` in tokens replaces the choice made from the
    draft's trained window.

    Raises:
        ConfigError: a folder cannot be read, the two do not fit together, or no value fits.
    """
    target, draft = target.absolute(), draft.absolute()
    wide, narrow = read_model_config(target), read_model_config(draft)
    if problems := refusals(pair_facts(wide, narrow)):
        raise ConfigError(*problems)
    choices = [
        Choice("method", "eagle3", "the one method DiffSpec drafts with"),
        Choice("model", str(draft), "the draft's folder; absolute, wherever the server is started"),
        Choice(
            "num_speculative_tokens",
            depth,
            "few enough that most drafted tokens can be accepted; raise it where the log shows "
            "that the last position is still accepted often"
            if depth == DEPTH
            else "as asked for",
        ),
        Choice("draft_context_policy", "diffspec", "turns DiffSpec on"),
        *_sizes(trained_window(narrow), depth, budget),
    ]
    notes: list[str] = []
    if tensor_parallel_size > 1:
        choices.append(
            Choice(
                "draft_tensor_parallel_size",
                tensor_parallel_size,
                "the draft runs on the target's ranks, and a lane with several wants it said",
            )
        )
        notes += refusals(LaunchFacts(tensor_parallel_size=tensor_parallel_size))
    document: dict[str, Any] = {
        "launch_options": {"speculative_config": {c.key: c.value for c in choices}}
    }
    choices.append(Choice("host_version", host.version, host.why))
    if host.version is not None:
        document["host_version"] = host.version
    verdict = check(document)
    if verdict.problems:
        raise ConfigError(*verdict.problems)
    return Proposal(document, tuple(choices), tuple(notes))


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
