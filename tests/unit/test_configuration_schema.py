# SPDX-License-Identifier: Apache-2.0
"""The schema of a configuration file and the settings accept and refuse the same objects.

What a JSON Schema cannot say is named here and computed without the settings' code; nothing else
may be a difference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from diffspec import schemas
from diffspec.keys import BY_KEY, KEYS
from diffspec.settings import ConfigError, DiffSpecSettings, split_keys
from tests.unit.test_settings import WRONG

CHUNKS = (16, 32, 64, 128, 256, 512)
PLAIN = Draft202012Validator(schemas.load("diffspec"))


def schema_accepts(config: dict[str, Any]) -> bool:
    document = {"launch_options": {"speculative_config": config}}
    verdict = not schemas.problems("diffspec", document)
    try:
        text = json.dumps(document, allow_nan=False)
    except ValueError:
        return verdict
    # Editors have a plain validator; on what JSON can hold it must say the same as ours.
    assert PLAIN.is_valid(json.loads(text)) == verdict
    return verdict


def number_of_drafts(config: dict[str, Any]) -> int | None:
    """What vLLM reads as num_speculative_tokens, where it is a number above 0."""
    for key, value in config.items():
        if key.replace("-", "_") == "num_speculative_tokens":
            known = type(value) in (int, float) and value > 0 and value % 1 == 0
            return int(value) if known else None
    return None


def settings_accept(config: dict[str, Any]) -> bool:
    ours, _ = split_keys(config)
    try:
        DiffSpecSettings.parse(ours, num_speculative_tokens=number_of_drafts(config))
    except ConfigError:
        return False
    return True


def least_budget(chunk: int, interval: int, depth: int) -> int | None:
    """By trying every multiple of the chunk size up to the largest budget."""
    for budget in range(chunk, 65537, chunk):
        sink, window = chunk, max(4, budget // 4 // chunk) * chunk
        growth = math.ceil(interval * (depth + 1) / chunk) * chunk
        if budget >= 128 and sink + window + growth + depth - 1 + chunk <= budget:
            return budget
    return None


def misspelt(key: str) -> bool:
    """Similar to a key of ours without having its beginning."""
    name = key.replace("-", "_").lower()
    if name.startswith(("diffspec", "draft_context")):
        return False
    return any(SequenceMatcher(None, known, name).ratio() >= 0.8 for known in BY_KEY)


def beyond_a_schema(config: dict[str, Any]) -> bool:
    """Whether a rule that the schema's $comment names refuses an object whose values are right."""
    values = {key.replace("-", "_"): value for key, value in config.items()}
    depth = number_of_drafts(config)
    chunk = int(values.get("diffspec_chunk_size", 64))
    interval = int(values.get("diffspec_retrieval_interval", 4))
    least = least_budget(chunk, interval, depth or 1)
    too_small = least is None or values.get("diffspec_token_budget", least) < least
    shallow = values.get("diffspec_long_context_depth", 1)
    too_deep = depth is not None and depth > 16 and shallow > depth
    return too_small or too_deep or any(misspelt(key) for key in config)


RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "draft_context_policy": st.sampled_from(["full", "diffspec"]),
    "diffspec_verification_mode": st.sampled_from(["auto", "linear"]),
    "diffspec_chunk_size": st.sampled_from(CHUNKS),
    "diffspec_token_budget": st.one_of(
        st.integers(2, 40).map(lambda n: 64 * n),
        st.builds(lambda c, n: c * n, st.sampled_from(CHUNKS), st.integers(1, 128)),
        st.integers(128, 65536),
    ),
    "diffspec_retrieval_interval": st.one_of(st.integers(1, 8), st.integers(1, 256)),
    "diffspec_max_tree_nodes": st.integers(1, 1024),
    "diffspec_tree_threshold": st.floats(0, 1, exclude_min=True),
    "diffspec_adaptive_profile": st.booleans(),
    "diffspec_long_context_threshold": st.integers(1, 10**9),
    "diffspec_long_context_depth": st.integers(1, 20),
}
BORDERS = [0, 1, -1, 15, 16, 63, 64, 127, 128, 256, 257, 512, 513, 1024, 1025, 65536, 65537, 10**30]
WILD = st.one_of(
    st.sampled_from([*BORDERS, *map(float, BORDERS), 0.5, 64.5, 5e-324, 1e308, -0.0]),
    st.sampled_from([math.nan, math.inf, -math.inf, True, False, None, "", "64", "tree", "TRUE"]),
    st.sampled_from(["full", "diffspec", "auto", [], [64], {}, {"a": 1}]),
    st.integers(),
    st.floats(),
)
DEPTH = st.one_of(
    st.integers(1, 18), st.sampled_from([3.0, 17.0, 0, -1, 2.5, True, "3", None, 64, 300])
)


def as_float(value: Any) -> Any:
    return float(value) if type(value) is int else value


def respell(draw: Callable[..., Any], key: str) -> str:
    way = draw(st.integers(0, 9))
    if way < 6:
        return key
    if way < 9:
        return "".join(draw(st.sampled_from("-_")) if c == "_" else c for c in key)
    place = draw(st.integers(0, len(key) - 1))
    mutation = draw(
        st.sampled_from(
            ["", key[place].upper(), key[place] * 2, "x", " ", "\n", "\u0130", "\u017f"]
        )
    )
    end = draw(st.sampled_from(["", "", "", "\n", "_", "s"]))
    return key[:place] + mutation + key[place + 1 :] + end


@st.composite
def speculative_configs(draw: Callable[..., Any]) -> dict[str, Any]:
    config: dict[str, Any] = draw(
        st.fixed_dictionaries({}, optional={"method": st.just("eagle3"), "x-y": WILD, "": WILD})
    )
    if draw(st.booleans()):
        name = draw(st.sampled_from(["num_speculative_tokens", "num-speculative_tokens"]))
        config[name] = draw(DEPTH)
    for key in draw(st.lists(st.sampled_from(list(BY_KEY)), max_size=6)):
        kind = draw(st.integers(0, 7))
        value = draw(WILD) if kind == 0 else draw(RIGHT[key])
        config[respell(draw, key)] = as_float(value) if kind == 1 else value
    return config


@settings(max_examples=500, deadline=None)
@given(speculative_configs())
@example({})
@example({"diffspec_chunk_size": 64.0, "diffspec-token-budget": 2048.0})
@example({"diffspec_verification_mode": "tree"})
@example({"diffspec_tree_threshold": math.nan})
@example({"diffspec_tree_threshold": 1})
@example({"diffspec_chunk_size": 64, "diffspec-chunk_size": 64})
@example({"diffspec_chunk_size\n": 64})
@example({"DIFFSPEC_CHUNK_SIZE": 64})
@example({"difspec_chunk_size": 64})
@example({"diffspec_token_budget": 384})
@example({"diffspec_retrieval_interval": 256, "num_speculative_tokens": 300})
@example({"diffspec_long_context_depth": 18, "num_speculative_tokens": 17})
@example({"diffspec_long_context_depth": 16, "num-speculative-tokens": 16.0})
def test_schema_and_settings_agree(config: dict[str, Any]) -> None:
    by_schema, by_settings = schema_accepts(config), settings_accept(config)
    if by_schema:
        assert by_settings is not beyond_a_schema(config)
    else:
        assert not by_settings


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, vs in WRONG.items() for v in vs])
def test_the_schema_refuses_what_the_settings_refuse(key: str, value: Any) -> None:
    assert not schema_accepts({key: value})


@pytest.mark.parametrize(
    ("spec", "value"), [(s, v) for s in KEYS for v in (s.minimum, s.maximum) if v is not None]
)
def test_the_borders_are_accepted(spec: Any, value: int) -> None:
    # With these the least budget is the least value of the key.
    config = {"diffspec_chunk_size": 16, "diffspec_retrieval_interval": 1, spec.key: value}
    within = not spec.minimum_excluded or value > spec.minimum
    assert schema_accepts(config) == settings_accept(config) == within


@pytest.mark.parametrize("chunk", [None, *CHUNKS])
@pytest.mark.parametrize("off", [0, 1, 8])
def test_a_budget_is_counted_in_whole_chunks(chunk: int | None, off: int) -> None:
    config = {"diffspec_token_budget": 8192 + off}
    if chunk is not None:
        config["diffspec_chunk-size"] = chunk
    assert schema_accepts(config) == settings_accept(config) == (off == 0)


@pytest.mark.parametrize("depth", range(1, 19))
def test_the_shallow_depth_is_bounded_by_the_depth(depth: int) -> None:
    config = {"num_speculative_tokens": depth, "diffspec-long-context-depth": depth}
    assert schema_accepts(config)
    assert settings_accept(config)
    config["diffspec-long-context-depth"] += 1
    assert schema_accepts(config) == (depth > 16)
    assert not settings_accept(config)


def test_the_schema_is_a_valid_one_and_names_what_it_cannot_say() -> None:
    schema = schemas.load("diffspec")
    Draft202012Validator.check_schema(schema)
    comment = schema["$defs"]["speculative_config"]["$comment"]
    assert all(f"({number})" in comment for number in (1, 2, 3, 4))


@pytest.mark.parametrize("spec", KEYS, ids=lambda spec: spec.key)
def test_the_schema_says_what_the_table_of_keys_says(spec: Any) -> None:
    schema = schemas.load("diffspec")
    speculative = schema["$defs"]["speculative_config"]["properties"]
    assert speculative[spec.key] == {"$ref": f"#/$defs/{spec.key}"}
    rule = schema["$defs"][spec.key]
    assert rule["title"] == spec.meaning
    assert rule["default"] == spec.default
    assert type(rule["default"]) is type(spec.default)
    assert len(rule["description"]) > len("No effect in this release")


def test_the_schema_names_ten_keys_and_the_manager_three_options() -> None:
    schema = schemas.load("diffspec")
    speculative = schema["$defs"]["speculative_config"]["properties"]
    assert [key for key, rule in speculative.items() if "$ref" in rule] == list(BY_KEY)
    assert list(schema["properties"]["launch_options"]["properties"]) == [
        "speculative_config",
        "batch_admission_policy_config",
        "scheduler_reserve_output_budget",
    ]


def test_the_manifest_declares_no_environment_as_the_schema_says() -> None:
    assert schemas.manifest()["activation"]["environment"] == {}
