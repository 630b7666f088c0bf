# SPDX-License-Identifier: Apache-2.0
"""Whatever the files and the command line hold, the doctor answers with findings."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diffspec.doctor import command, lanes, manager, pair, speculative
from diffspec.doctor.arguments import SPECULATIVE, CommandError, parse
from diffspec.doctor.checkpoint import Checkpoint, Tensor, locate
from diffspec.doctor.findings import Finding
from diffspec.hosts.unsupported import LaunchFacts
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
    window = speculative.window_findings(judged.trained_window, pair.served_length(whole), None)
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
        command.facts(reading.command, "cuda", {})
        command.ascend_launch(reading.command, LaunchFacts(), 3, 10, 10)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*BY_KEY, "model", "method", "max_model_len", "x"]), ANY))
def test_any_speculative_object(config: dict[str, Any]) -> None:
    read = speculative.Speculative.of(config)
    found = speculative.judge(read, 2048, None)
    found += lanes.refused(LaunchFacts(**read.facts()), "cpu", "command")
    assert found
    assert all(f.what for f in found)


@settings(max_examples=100, deadline=None)
@given(ANY)
def test_any_state_of_the_manager(tmp_path_factory: Any, document: object) -> None:
    path = tmp_path_factory.mktemp("state") / "config.json"
    entries = {"schema_version": 2, "extensions": {"a": document, "org.vllm-hust.diffspec": {}}}
    for content in (document, entries):
        path.write_text(json.dumps(content))
        state = manager.read_state({"VLLM_HUST_EXT_CONFIG": str(path)})
        state.enabled()
        assert state.speculative_config("a") is None or isinstance(document, dict)


def test_names_too_long_for_a_path() -> None:
    assert locate("x" * 5000, {}) is None
    assert parse(["vllm", "serve", "x" * 5000]).model == "x" * 5000
