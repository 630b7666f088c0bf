# SPDX-License-Identifier: Apache-2.0
"""The ten DiffSpec keys of ``--speculative-config``: one table for parsing, errors and docs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: A key this close (difflib ratio) to one of ours was meant for us. vLLM's own keys stay well
#: below it; a test compares against the host's real field names.
_NEAR_MISS = 0.8
_OUR_PREFIXES = ("diffspec", "draft_context")


class ConfigError(Exception):
    """A launch asked for something DiffSpec cannot do; carries every problem, not just the first.

    Not a ``ValueError`` on purpose: pydantic turns a ``ValueError`` raised anywhere below one of
    its validators into a ``ValidationError`` of its own wording, which would bury this text.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)

    @property
    def problems(self) -> tuple[str, ...]:
        """One line of text per problem, each naming the setting, its value and what is allowed."""
        return self.args

    def __str__(self) -> str:
        count = len(self.args)
        head = f"vllm-diffspec cannot start with this configuration ({count} problem"
        lines = [f"{head}{'s' if count != 1 else ''}):"]
        lines += [f"  {i}. {text}" for i, text in enumerate(self.args, 1)]
        return "\n".join(lines)


def whole(value: object) -> int | None:
    """The integer that a JSON number is, 4 for 4.0 as well; None for anything else."""
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else None


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One key: its name in the JSON object, its attribute in the settings and its own rules.

    ``kind`` is the Python type of the setting. JSON has one kind of number, so 64.0 is the integer
    64 and 1 the number 1.0, as JSON Schema has it too; ``bool`` is no number, and nothing is
    converted from a string.
    """

    key: str
    attribute: str
    kind: type
    default: str | int | float | bool
    meaning: str
    choices: tuple[str, ...] = ()
    minimum: int | float | None = None
    maximum: int | float | None = None
    minimum_excluded: bool = False
    power_of_two: bool = False

    @property
    def allowed(self) -> str:
        """The key's own rule in words, without the rules that involve other keys."""
        if self.kind is bool:
            return "true or false"
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = "an integer" if self.kind is int else "a number"
        if self.power_of_two:
            noun = "a power of two"
        if self.maximum is None:
            return f"{noun}, at least {self.minimum}"
        if self.minimum_excluded:
            return f"{noun} above {self.minimum} and at most {self.maximum}"
        return f"{noun} from {self.minimum} to {self.maximum}"

    def accepts(self, value: object) -> bool:
        """Whether ``value`` has the right type and lies in the key's own range."""
        if self.kind is bool:
            return isinstance(value, bool)
        if self.kind is str:
            return isinstance(value, str) and value in self.choices
        number = whole(value) if self.kind is int else value
        # ``type(...)`` rather than isinstance: bool is a subclass of int.
        if type(number) not in (int, float) or not isinstance(number, int | float):
            return False
        # Written so that NaN, for which every comparison is false, is refused.
        if self.minimum is not None:
            above = number > self.minimum if self.minimum_excluded else number >= self.minimum
            if not above:
                return False
        if self.maximum is not None and not number <= self.maximum:
            return False
        return not self.power_of_two or (isinstance(number, int) and number & (number - 1) == 0)

    def convert(self, value: Any) -> Any:
        """An accepted ``value`` in the setting's own type: 64 for 64.0, or 1.0 for 1."""
        return self.kind(value)


KEYS: tuple[KeySpec, ...] = (
    KeySpec(
        "draft_context_policy",
        "policy",
        str,
        "full",
        "`diffspec` turns the plugin on; `full` leaves the host's own drafting as it is",
        choices=("full", "diffspec"),
    ),
    KeySpec(
        "diffspec_verification_mode",
        "verification_mode",
        str,
        "auto",
        "how drafted tokens are verified; `tree` is not available yet",
        choices=("auto", "linear", "tree"),
    ),
    KeySpec(
        "diffspec_chunk_size",
        "chunk_size",
        int,
        64,
        "tokens per retrieval chunk",
        minimum=16,
        maximum=512,
        power_of_two=True,
    ),
    KeySpec(
        "diffspec_token_budget",
        "token_budget",
        int,
        2048,
        "most context tokens the draft attends to",
        minimum=128,
        maximum=65536,
    ),
    KeySpec(
        "diffspec_retrieval_interval",
        "retrieval_interval",
        int,
        4,
        "verification steps between two retrievals of one request",
        minimum=1,
        maximum=256,
    ),
    KeySpec(
        "diffspec_max_tree_nodes",
        "max_tree_nodes",
        int,
        50,
        "most nodes verified per step in tree mode",
        minimum=1,
        maximum=1024,
    ),
    KeySpec(
        "diffspec_tree_threshold",
        "tree_threshold",
        float,
        0.75,
        "probability threshold for a candidate in tree mode",
        minimum=0,
        maximum=1,
        minimum_excluded=True,
    ),
    KeySpec(
        "diffspec_adaptive_profile",
        "adaptive_profile",
        bool,
        True,
        "adapt depth and retrieval interval to what is accepted and what steps cost; false pins "
        "the depth at num_speculative_tokens and the interval at its value",
    ),
    KeySpec(
        "diffspec_long_context_threshold",
        "long_context_threshold",
        int,
        49152,
        "context length (tokens) from which a request starts shallow, until it has shown more",
        minimum=1,
    ),
    KeySpec(
        "diffspec_long_context_depth",
        "long_context_depth",
        int,
        2,
        "that shallow initial depth; at most num_speculative_tokens",
        minimum=1,
    ),
)

BY_KEY: dict[str, KeySpec] = {spec.key: spec for spec in KEYS}
BY_ATTRIBUTE: dict[str, KeySpec] = {spec.attribute: spec for spec in KEYS}


def normalise(key: str) -> str:
    """The underscore spelling of a key; vLLM accepts dashes in the same places."""
    return key.replace("-", "_")


def nearest_key(key: str) -> str | None:
    """The known key most like ``key``, or None when nothing is similar.

    Compared without the common prefix, which would make any ``diffspec_...`` similar to all.
    """
    tails = {spec.key.removeprefix("diffspec_"): spec.key for spec in KEYS}
    name = normalise(key).lower().removeprefix("diffspec_")
    found = difflib.get_close_matches(name, tails, n=1, cutoff=0.5)
    return tails[found[0]] if found else None


def is_ours(key: object) -> bool:
    """Whether a key of ``--speculative-config`` is for DiffSpec, known or misspelt."""
    if not isinstance(key, str):
        return False
    name = normalise(key).lower()
    near = difflib.get_close_matches(name, BY_KEY, n=1, cutoff=_NEAR_MISS)
    return name.startswith(_OUR_PREFIXES) or bool(near)


def split_keys(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a speculative-config object into (ours, the host's); ``raw`` is left untouched.

    Keys keep the spelling the user chose. Misspelt keys of ours are in the first part, so that
    :meth:`~diffspec.settings.DiffSpecSettings.parse` refuses them with a suggestion; vLLM would
    only say that the keyword is unexpected.
    """
    ours = {key: value for key, value in raw.items() if is_ours(key)}
    return ours, {key: value for key, value in raw.items() if key not in ours}


def asks_for_diffspec(ours: Mapping[str, Any]) -> bool:
    """Whether our part of an object turns DiffSpec on, right or wrong in everything else."""
    return any(
        normalise(key) == "draft_context_policy" and value == "diffspec"
        for key, value in ours.items()
    )


def show(value: object) -> str:
    """A value as it would be written in JSON, shortened to fit a line."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
