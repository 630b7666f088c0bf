# SPDX-License-Identifier: Apache-2.0
"""Whatever the files and the command line hold, the doctor answers with findings."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diffspec.configuration.checkpoint import Checkpoint, Tensor
from diffspec.configuration.lengths import served_length
from diffspec.configuration.places import find
from diffspec.configuration.speculative import Speculative
from diffspec.doctor import command, lanes, pair, speculative
from diffspec.doctor.arguments import SPECULATIVE, CommandError, parse
from diffspec.doctor.findings import Finding
from diffspec.doctor.manager_state import read_state
from diffspec.hosts.launch import LaunchFacts
from diffspec.keys import BY_KEY

from .doctor_models import EAGLE3_27B, QWEN35_27B, draft_shapes

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9000) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
TARGET = QWEN35_27B["text_config"] | {"architectures": ["Qwen3_5ForCausalLM"]}
EXTRA = [
    "eagle_config",
    "eagle_aux_hidden_state_layer_ids",
    "rope_scaling",
    "quantization_config",
    "sliding_window",
    "kv_lora_rank",
    "speculators_model_type",
    "transformer_layer_config",
]
DRAFT_KEYS = st.dictionaries(st.sampled_from([*EAGLE3_27B, *EXTRA]), ANY, max_size=4)
TARGET_KEYS = st.dictionaries(st.sampled_from([*TARGET, *EXTRA]), ANY, max_size=4)
SHAPES = st.dictionaries(
    st.sampled_from([*draft_shapes(EAGLE3_27B), "layers.3.x"]),
    st.builds(Tensor, st.lists(st.integers(0, 9000), max_size=3).map(tuple), st.text(max_size=4)),
)


@settings(max_examples=150, deadline=None)
@given(TARGET_KEYS, DRAFT_KEYS, SHAPES, st.sampled_from(["cpu", "cuda", "ascend", None]))
def test_any_pair(target: dict[str, Any], draft: dict[str, Any], shapes: Any, on: Any) -> None:
    wide, narrow = TARGET | target, EAGLE3_27B | draft
    whole = Checkpoint(Path("t"), wide, wide)
    judged = pair.judge(whole, Checkpoint(Path("d"), narrow, narrow, shapes), on)
    rows = lanes.refused(judged.facts, on, "pair")
    window = speculative.window_findings(judged.trained_window, served_length(wide), None)
    found = [*judged.findings, *rows, *window]
    assert all(isinstance(f, Finding) and f.what for f in found)
    assert all(f.fix for f in found if f.level == "error")


NAMES = (
    *(SPECULATIVE, "-sc", "--speculative_config", f"{SPECULATIVE}.model", "--spec-tokens", "-tp"),
    *("--config", "--kv-transfer-config", "--max-model-len=x", "--dtype", "--enable-lora"),
    *("--additional-config={}", "-", "--"),
)
WORDS = st.sampled_from([*NAMES, "4", "{}", "[", '{"model": "d"}', "", "a.yaml", "="])


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=8), st.booleans())
def test_any_command(words: list[str], managed: bool) -> None:
    taken = command.unwrap(["vllm", "serve", *words])
    reading = command.read(taken, {"model": "d"} if managed else None, {}, managed=managed)
    assert all(f.what for f in reading.findings)
    if reading.command is None:
        assert any(f.level == "error" for f in reading.findings)
        return
    with suppress(CommandError):  # an option that should hold JSON
        for platform in ("cuda", "ascend"):
            known = command.facts(reading.command, platform, {})
            lanes.refused(known, platform, "command")
            lanes.ascend(known, {}, served=10, window=10)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*BY_KEY, "model", "method", "max_model_len", "x"]), ANY))
def test_any_speculative_object(config: dict[str, Any]) -> None:
    read = Speculative.of(config)
    found = speculative.judge(read, 2048, None)
    found += lanes.refused(LaunchFacts(**read.facts()), "cpu", "command")
    assert found
    assert all(f.what for f in found)


ENTRIES = ANY | st.fixed_dictionaries(
    {}, optional={"enabled": st.booleans(), "configuration": st.dictionaries(st.text(), ANY)}
)
STATES = st.one_of(
    ANY,
    st.fixed_dictionaries(
        {"schema_version": st.sampled_from([2, 2, 2, 1, 3, None])},
        optional={
            "extensions": st.dictionaries(st.sampled_from("abc"), ENTRIES) | ANY,
            "enabled": st.lists(st.sampled_from("abc"), unique=True),
        },
    ),
)


@pytest.fixture(scope="module")
def stand_in() -> Iterator[Any]:
    """The module by which the Manager's stand-in reads its state."""
    folder = str(Path(__file__).parents[1] / "manager_standin")
    sys.path.insert(0, folder)
    yield importlib.import_module("diffspec_manager_standin.state")
    sys.path.remove(folder)


@settings(max_examples=200, deadline=None)
@given(STATES.map(json.dumps) | st.text(max_size=9))
@example('{"schema_version": 2, "extensions": {"a": {"enabled": false, "enabled": true}}}')
@example('{"schema_version": 2, "extensions": {"a": {"configuration": {"b": NaN}, "c": 1}}}')
def test_any_state_of_the_manager(stand_in: Any, tmp_path_factory: Any, content: str) -> None:
    """The stand-in reads it if and only if the doctor does, and finds the same in it."""
    path = tmp_path_factory.mktemp("state") / "config.json"
    path.write_text(content, encoding="utf-8", errors="replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_HUST_EXT_CONFIG", str(path))
        try:
            theirs = stand_in.load()
        except (ValueError, LookupError, AttributeError, TypeError):
            theirs = None
    ours = read_state({"VLLM_HUST_EXT_CONFIG": str(path)})
    assert (ours.problem is None) == (theirs is not None)
    assert sorted(ours.enabled()) == (theirs.enabled if theirs else [])
    for name in "abc" if theirs else "":
        known = json.dumps(theirs.configuration(name), sort_keys=True)
        assert json.dumps(ours.configuration(name) or {}, sort_keys=True) == known


def test_names_too_long_for_a_path() -> None:
    assert find("x" * 5000, {}).folder is None
    assert parse(["vllm", "serve", "x" * 5000]).model == "x" * 5000
