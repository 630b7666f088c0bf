# SPDX-License-Identifier: Apache-2.0
"""Parsing of the ten keys: types, ranges, rules between keys, adjusted defaults, transport."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffspec.keys import BY_KEY, KEYS, nearest_key
from diffspec.settings import ConfigError, DiffSpecSettings, minimum_budget, split_keys

DEPTHS = st.integers(1, 16)
KEY_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "draft_context_policy": st.sampled_from(["full", "diffspec"]),
    "diffspec_verification_mode": st.sampled_from(["auto", "linear"]),
    "diffspec_chunk_size": st.sampled_from([16, 32, 64, 128, 256, 512]),
    "diffspec_token_budget": st.integers(128, 65536),
    "diffspec_retrieval_interval": st.integers(1, 256),
    "diffspec_max_tree_nodes": st.integers(1, 1024),
    "diffspec_tree_threshold": st.floats(0, 1, exclude_min=True),
    "diffspec_adaptive_profile": st.booleans(),
    "diffspec_long_context_threshold": st.integers(1, 10**9),
    "diffspec_long_context_depth": st.integers(1, 16),
}
SOME_KEYS = st.fixed_dictionaries({}, optional=KEY_VALUES)

WRONG: dict[str, list[Any]] = {
    "draft_context_policy": ["Full", "", "on", True, None, 1, ["full"]],
    "diffspec_verification_mode": ["chain", "AUTO", None, 0],
    "diffspec_chunk_size": [0, 8, 15, 48, 1024, -64, 64.5, 48.0, "64", True, None, [64]],
    "diffspec_token_budget": [0, 64, 127, 65537, 65600, -2048, 2048.5, 64.0, "2048", True, None],
    "diffspec_retrieval_interval": [0, -1, 257, 4.5, math.nan, "4", True, None],
    "diffspec_max_tree_nodes": [0, -1, 1025, 50.1, math.inf, "50", False, None],
    "diffspec_tree_threshold": [0, 0.0, -0.5, 1.5, math.nan, math.inf, "0.75", True, None, 2],
    "diffspec_adaptive_profile": [0, 1, "true", "false", None, 1.0],
    "diffspec_long_context_threshold": [0, -1, 49152.5, math.inf, "49152", True, None],
    "diffspec_long_context_depth": [0, -1, 2.5, -math.inf, "2", True, None],
}


def parse(ours: dict[str, Any], depth: int | None = 3, window: int | None = None) -> Any:
    return DiffSpecSettings.parse(ours, num_speculative_tokens=depth, trained_window=window)


def problems_of(ours: dict[str, Any], depth: int | None = 3, window: int | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(ours, depth, window)
    return str(caught.value)


def test_the_table_has_ten_keys_and_names_every_field() -> None:
    assert len(KEYS) == 10
    assert [f.name for f in dataclasses.fields(DiffSpecSettings)] == [
        *(spec.attribute for spec in KEYS),
        "notes",
    ]
    assert set(WRONG) == set(KEY_VALUES) == set(BY_KEY)


def test_defaults() -> None:
    settings = parse({})
    assert settings.to_payload() == {
        "policy": "full",
        "verification_mode": "auto",
        "chunk_size": 64,
        "token_budget": 2048,
        "retrieval_interval": 4,
        "max_tree_nodes": 50,
        "tree_threshold": 0.75,
        "adaptive_profile": True,
        "long_context_threshold": 49152,
        "long_context_depth": 2,
        "notes": [],
    }
    assert not settings.active
    assert parse({"draft_context_policy": "diffspec"}).active


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, vs in WRONG.items() for v in vs])
def test_a_wrong_value_is_refused_by_name(key: str, value: Any) -> None:
    text = problems_of({key: value})
    assert "(1 problem)" in text
    assert f"{key} = " in text
    assert f"must be {BY_KEY[key].allowed}" in text


def test_all_problems_are_shown_together() -> None:
    ours = {key: values[0] for key, values in WRONG.items()}
    ours["diffspec_bugdet"] = 7
    text = problems_of(ours)
    assert "(11 problems)" in text
    for key in ours:
        assert f"{key} = " in text
    assert "did you mean diffspec_token_budget?" in text


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("diffspec_bugdet", "diffspec_token_budget"),
        ("draft_contex_policy", "draft_context_policy"),
        ("diffspec_chunksize", "diffspec_chunk_size"),
        ("DiffSpec-Retrieval-Intervall", "diffspec_retrieval_interval"),
        ("diffspec_adaptive", "diffspec_adaptive_profile"),
    ],
)
def test_a_misspelt_key_is_ours_and_gets_a_suggestion(typo: str, meant: str) -> None:
    assert nearest_key(typo) == meant
    ours, rest = split_keys({typo: 1, "method": "eagle3"})
    assert (ours, rest) == ({typo: 1}, {"method": "eagle3"})
    assert f"did you mean {meant}?" in problems_of(ours)


def test_nonsense_under_our_prefix_lists_the_keys() -> None:
    assert "known keys: draft_context_policy, " in problems_of({"diffspec_zzzz": 1})


def test_one_key_in_two_spellings_is_refused() -> None:
    text = problems_of({"diffspec_chunk_size": 64, "diffspec-chunk-size": 32})
    assert "the same key as diffspec_chunk_size" in text


def test_split_leaves_its_argument_alone_and_takes_both_spellings() -> None:
    raw = {"method": "eagle3", "diffspec-chunk-size": 32, "draft_context_policy": "full"}
    before = dict(raw)
    ours, rest = split_keys(raw)
    assert raw == before
    assert rest == {"method": "eagle3"}
    assert parse(ours).chunk_size == 32


def test_tree_mode_is_refused() -> None:
    assert "not available yet; use auto or linear" in problems_of(
        {"diffspec_verification_mode": "tree"}
    )


def test_an_integer_threshold_becomes_a_float() -> None:
    value = parse({"diffspec_tree_threshold": 1}).tree_threshold
    assert value == 1.0
    assert type(value) is float


def test_a_float_that_is_an_integer_becomes_one() -> None:
    settings = parse({"diffspec_chunk_size": 32.0, "diffspec_long_context_threshold": 1e300})
    assert settings.chunk_size == 32
    assert type(settings.chunk_size) is int
    assert settings.long_context_threshold == int(1e300)
    payload = settings.to_payload() | {"chunk_size": 32.0}
    assert type(DiffSpecSettings.from_payload(payload).chunk_size) is int


@pytest.mark.parametrize(
    ("ours", "depth", "window", "expected"),
    [
        ({"diffspec_token_budget": 2000}, 3, None, "a multiple of diffspec_chunk_size (64)"),
        ({"diffspec_token_budget": 256}, 3, None, "at least 512"),
        ({"diffspec_token_budget": 2048}, 3, 1000, "at most 960: the draft's trained window is"),
        ({"diffspec_token_budget": 1000}, 3, 512, "(64); and at most 512"),
        ({"diffspec_long_context_depth": 4}, 3, None, "at most num_speculative_tokens (3)"),
        ({}, 3, 100, "No chunk size fits"),
        ({}, 3, 300, "Set diffspec_chunk_size to 32"),
        ({"diffspec_retrieval_interval": 256}, 8, 1000, "and diffspec_retrieval_interval to 4"),
        ({"diffspec_chunk_size": 512}, 3, 3000, "at least 4096 is needed"),
    ],
)
def test_rules_between_keys(
    ours: dict[str, Any], depth: int, window: int | None, expected: str
) -> None:
    text = problems_of(ours, depth, window)
    assert "(1 problem)" in text
    assert expected in text


@pytest.mark.parametrize(
    ("ours", "depth", "window", "attribute", "value", "note"),
    [
        ({}, 1, None, "long_context_depth", 1, "num_speculative_tokens is 1"),
        ({}, 3, 512, "token_budget", 512, "trained window is 512"),
        ({}, 3, 1000, "token_budget", 960, "trained window is 1000"),
        ({"diffspec_chunk_size": 512}, 3, None, "token_budget", 4096, "diffspec_chunk_size 512"),
        ({}, 3, 2048, "token_budget", 2048, None),
    ],
)
def test_a_default_is_adjusted_with_a_note(
    ours: dict[str, Any],
    depth: int,
    window: int | None,
    attribute: str,
    value: int,
    note: str | None,
) -> None:
    settings = parse(ours | {"draft_context_policy": "diffspec"}, depth, window)
    assert getattr(settings, attribute) == value
    assert [note in line for line in settings.notes if note] == ([True] if note else [])
    assert len(settings.notes) == (note is not None)


def test_an_advised_chunk_size_really_fits() -> None:
    assert parse({"diffspec_chunk_size": 32}, 3, 300).token_budget <= 300


def test_an_unknown_depth_checks_what_it_can() -> None:
    assert parse({"diffspec_long_context_depth": 9}, None).long_context_depth == 9
    # Even one drafted token needs sink, window, growth and one retrieved chunk.
    assert "at least 448" in problems_of({"diffspec_token_budget": 384}, None)


def test_inert_keys_are_noted() -> None:
    everything = {spec.key: spec.default for spec in KEYS}
    full = parse(everything)
    assert len(full.notes) == 1
    assert "no effect while draft_context_policy is full" in full.notes[0]
    on = parse(everything | {"draft_context_policy": "diffspec"})
    (tree,) = on.notes
    assert "linear: diffspec_max_tree_nodes, diffspec_tree_threshold" in tree
    pinned = everything | {"draft_context_policy": "diffspec", "diffspec_adaptive_profile": False}
    _, cautious = parse(pinned).notes
    assert "false: diffspec_long_context_threshold, diffspec_long_context_depth" in cautious


@given(SOME_KEYS, DEPTHS, st.none() | st.integers(1, 70000))
def test_whatever_parses_fits_the_budget_and_travels(
    ours: dict[str, Any], depth: int, window: int | None
) -> None:
    try:
        settings = parse(ours, depth, window)
    except ConfigError:
        return
    # The parts laid end to end, independently of how pick_chunks divides what is left.
    chunk = settings.chunk_size
    growth = math.ceil(settings.retrieval_interval * (depth + 1) / chunk) * chunk
    assert settings.reserve_tokens(depth) == growth
    used = chunk * (1 + settings.window_chunks() + settings.pick_chunks(depth))
    used += growth + depth - 1
    assert used <= settings.token_budget < used + chunk
    assert settings.pick_chunks(depth) >= 1
    assert settings.window_chunks() >= 4
    assert settings.token_budget % chunk == 0
    assert window is None or settings.token_budget <= window
    assert settings.long_context_depth <= depth
    for key, value in ours.items():
        assert getattr(settings, BY_KEY[key].attribute) == value
    payload = json.loads(json.dumps(settings.to_payload()))
    assert DiffSpecSettings.from_payload(payload) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings


@given(st.sampled_from([16, 64, 512]), st.integers(1, 256), DEPTHS)
def test_minimum_budget_is_the_least_that_parses(chunk: int, interval: int, depth: int) -> None:
    least = minimum_budget(chunk, interval, depth)
    ours = {"diffspec_chunk_size": chunk, "diffspec_retrieval_interval": interval}
    assert parse(ours | {"diffspec_token_budget": least}, depth).pick_chunks(depth) >= 1
    if least - chunk >= 128:
        assert f"at least {least}" in problems_of(
            ours | {"diffspec_token_budget": least - chunk}, depth
        )


def test_an_absurd_depth_is_refused_and_not_searched_for() -> None:
    text = problems_of({}, 10**15)
    assert "no budget fits: at least 6666666666666880 is needed" in text
    assert "at most 65536 is possible" in text


def test_successor_chunks_cover_what_an_interval_can_read() -> None:
    settings = parse({"diffspec_chunk_size": 16, "diffspec_token_budget": 256}, 4)
    # 4 steps of 5 tokens plus 4 drafted beyond them: 24 tokens reach into a second chunk of 16.
    assert settings.successor_chunks(4) == 2
    assert parse({}, 3).successor_chunks(3) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"chunk_size": None}, "chunk_size = null"),
        ({"extra": 1}, "extra is unknown"),
        ({"notes": "text"}, "notes = "),
    ],
)
def test_a_payload_from_another_version_is_refused(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match="same vllm-diffspec in every process") as caught:
        DiffSpecSettings.from_payload(parse({}).to_payload() | change)
    assert expected in str(caught.value)
    short = parse({}).to_payload()
    del short["policy"]
    with pytest.raises(ConfigError, match="policy is missing"):
        DiffSpecSettings.from_payload(short)


def test_the_error_is_no_value_error_and_survives_pickling() -> None:
    error = ConfigError("a", "b")
    assert not isinstance(error, ValueError)
    copy = pickle.loads(pickle.dumps(error))
    assert copy.problems == ("a", "b")
    assert str(copy) == str(error)


def test_no_key_of_the_host_is_mistaken_for_ours() -> None:
    config = pytest.importorskip("vllm.config")
    host_keys = {f.name for f in dataclasses.fields(config.SpeculativeConfig)}
    assert "draft_tensor_parallel_size" in host_keys
    spellings = host_keys | {key.replace("_", "-") for key in host_keys}
    ours, rest = split_keys(dict.fromkeys(spellings, 1))
    assert ours == {}
    assert set(rest) == spellings
