# SPDX-License-Identifier: Apache-2.0
"""The keys of a configuration file in words, from the schema alone."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffspec import schemas
from diffspec.keys import normalise

_NOUNS = {
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """One key. ``default`` is JSON text or empty, ``where`` the object that holds the key."""

    key: str
    where: str
    default: str
    allowed: str
    meaning: str
    detail: str
    example: str
    ours: bool


def all_keys() -> list[Explained]:
    """Every key the schema names: DiffSpec's ten, vLLM's beside them, then the file's own."""
    schema = schemas.load("diffspec")
    definitions = schema["$defs"]
    speculative = definitions["speculative_config"]["properties"]
    ours = {key for key, rule in speculative.items() if "$ref" in rule}
    inside = "launch_options.speculative_config"
    found = [
        _explain(key, inside, definitions[key] if key in ours else rule, key in ours)
        for key, rule in speculative.items()
    ]
    found.sort(key=lambda item: not item.ours)
    options = schema["properties"]["launch_options"]["properties"]
    for where, rules in (("", schema["properties"]), ("launch_options", options)):
        for key, rule in rules.items():
            if not key.startswith("$"):
                full = definitions["speculative_config"] if "$ref" in rule else rule
                found.append(_explain(key, where, full, False))
    return found


def find(name: str) -> Explained:
    """The key called ``name``, with dashes or underscores.

    Raises:
        KeyError: there is none; the argument is a sentence with the nearest names.
    """
    table = {item.key: item for item in all_keys()}
    key = normalise(name.rsplit(".", 1)[-1]).lower()
    if key in table:
        return table[key]
    short = {name.removeprefix("diffspec_"): name for name in table}
    near = difflib.get_close_matches(key.removeprefix("diffspec_"), short, n=1, cutoff=0.5)
    hint = f"did you mean {short[near[0]]}?" if near else "known: " + ", ".join(table)
    raise KeyError(f"no key {name}; {hint}")


def allowed(rule: Mapping[str, Any]) -> str:
    """What a key's own rule accepts, in words; empty where the schema leaves it to the host."""
    if "enum" in rule:
        return "one of " + ", ".join(str(value) for value in rule["enum"])
    if rule.get("maxProperties") == 0:
        return "an empty object"
    if rule.get("format") == "pep440-version":
        return "a version, as a string"
    noun = _NOUNS.get(rule.get("type", ""), "")
    least, above, most = (rule.get(k) for k in ("minimum", "exclusiveMinimum", "maximum"))
    if least is not None and most is not None:
        return f"{noun} from {least} to {most}"
    if least is not None:
        return f"{noun}, at least {least}"
    if above is not None and most is not None:
        return f"{noun} above {above} and at most {most}"
    return noun


def _explain(key: str, where: str, rule: Mapping[str, Any], ours: bool) -> Explained:
    examples = rule.get("examples", [])
    return Explained(
        key=key,
        where=where,
        default=json.dumps(rule["default"]) if "default" in rule else "",
        allowed=allowed(rule) or "as vLLM has it",
        meaning=rule["title"],
        detail=rule["description"],
        example=json.dumps(examples[0]) if examples else "",
        ours=ours,
    )
