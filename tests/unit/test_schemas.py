# SPDX-License-Identifier: Apache-2.0
"""The schema loader: which schemas there are, and what a violation reads like."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from diffspec import schemas

Check = Callable[[dict[str, Any], object], list[str]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """What a document breaks in a schema made up for the test."""

    def problems(schema: dict[str, Any], document: object) -> list[str]:
        Draft202012Validator.check_schema(schema)
        with monkeypatch.context() as patch:
            patch.setattr(schemas, "load", lambda _: schema)
            schemas._validator.cache_clear()
            found = schemas.problems("made-up", document)
        schemas._validator.cache_clear()
        return found

    return problems


@pytest.mark.parametrize("name", schemas.NAMES)
def test_every_schema_is_one(name: str) -> None:
    schema = schemas.load(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"]


def test_there_is_no_schema_beside_these() -> None:
    files = {p.name for p in schemas.data_file("schemas", "").iterdir() if p.name.endswith("json")}
    assert files == {f"{name}.schema.json" for name in schemas.NAMES}
    with pytest.raises(ValueError, match=re.escape("no schema 'x'; there are manifest-0.2, diff")):
        schemas.load("x")


def test_a_schema_can_be_changed_without_harm() -> None:
    schemas.load("manifest-0.2").clear()
    assert schemas.load("manifest-0.2")["title"]
    assert schemas.problems("manifest-0.2", schemas.manifest()) == []


@pytest.mark.parametrize(
    ("schema", "document", "lines"),
    [
        ({"type": "string"}, 1, ["$: 1 is not of type 'string'"]),
        (
            {"properties": {"b": {"type": "null"}, "a": {"items": {"minimum": 2}}}},
            {"b": 0, "a": [2, 1]},
            ["$.a[1]: 1 is less than the minimum of 2", "$.b: 0 is not of type 'null'"],
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "object", "required": ["x"]}]},
            {},
            ["$: 'x' is a required property"],
        ),
        ({"maximum": 3, "errorMessage": "three at most"}, 4, ["$ = 4: three at most"]),
        (
            {"properties": {"a": {"not": {}, "errorMessage": "is not known yet"}}},
            {"a": "y" * 99},
            ["$.a = '" + "y" * 56 + "...: is not known yet"],
        ),
        ({"type": "null"}, "y" * 99, ["$: '" + "y" * 56 + "... is not of type 'null'"]),
        ({"format": "pep440-version"}, "1.x", ["$: '1.x' is not a 'pep440-version'"]),
        ({"format": "pep440-version"}, "1.0rc1", []),
        ({"format": "pep440-version"}, 3, []),
        ({"format": "pep440-range"}, "", ["$: '' is not a 'pep440-range'"]),
        ({"format": "pep440-range"}, "1.0", ["$: '1.0' is not a 'pep440-range'"]),
        ({"format": "pep440-range"}, ">=1.0rc1,!=1.1.*", []),
        ({"format": "date"}, "no date", []),
        (
            {"uniqueItemProperties": ["a", "b"]},
            [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"b": 1}, {}, 5],
            ["$: b 1 is given 3 times"],
        ),
        ({"uniqueItemProperties": ["a"]}, [{"a": 1}, {"a": 2}], []),
        ({"uniqueItemProperties": ["a"]}, {"a": 1}, []),
        ({"type": "number", "minimum": 0}, math.nan, ["$: nan is not of type 'number'"]),
        ({"type": "number", "minimum": 0}, math.inf, ["$: inf is not of type 'number'"]),
        ({"type": "number"}, True, ["$: True is not of type 'number'"]),
        ({"type": "number"}, 1.5, []),
        ({"type": "integer"}, 3, []),
        ({"type": "integer"}, 3.0, []),
        ({"type": "integer"}, 3.5, ["$: 3.5 is not of type 'integer'"]),
    ],
)
def test_what_a_violation_reads_like(
    check: Check, schema: dict[str, Any], document: object, lines: list[str]
) -> None:
    assert check(schema, document) == lines
