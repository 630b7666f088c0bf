# SPDX-License-Identifier: Apache-2.0
"""How long a model is made for and served with, against vLLM's own reading of the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diffspec.configuration.lengths import DEFAULT_POSITIONS, served_length, trained_window

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 128,
}
_SHORT, _LONG = [1.0] * 8, [2.0] * 8


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama"},
        {"model_type": "qwen3"},
        {"model_type": "llama", "max_position_embeddings": 4096},
        {
            "model_type": "llama",
            "max_position_embeddings": 8192,
            **rope("yarn", factor=4.0, original_max_position_embeddings=1024),
        },
        {"model_type": "llama", "max_position_embeddings": 2048, **rope("linear", factor=2.0)},
        {
            "model_type": "llama",
            "max_position_embeddings": 8192,
            **rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=1024,
            ),
        },
        {
            "model_type": "gemma3_text",
            "head_dim": 16,
            "layer_types": ["full_attention"],
            "max_position_embeddings": 131072,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        {
            "model_type": "phi3",
            "pad_token_id": 0,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            **rope("longrope", short_factor=_SHORT, long_factor=_LONG),
        },
    ],
    ids=lambda c: f"{c['model_type']}-{c.get('rope_parameters', {}).get('rope_type', 'plain')}",
)
def test_the_served_length_is_vllms(tmp_path: Path, config: dict[str, Any]) -> None:
    pytest.importorskip("vllm")
    from types import SimpleNamespace

    from vllm.config.model import _get_and_verify_max_len
    from vllm.transformers_utils.config import get_config
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

    (tmp_path / "config.json").write_text(json.dumps(_SMALL | config))
    read = get_config(str(tmp_path), trust_remote_code=False)
    derived = ModelArchConfigConvertorBase(read, read).derive_max_model_len_and_key()
    length = _get_and_verify_max_len(
        hf_config=read,
        model_arch_config=SimpleNamespace(derived_max_model_len_and_key=derived),
        tokenizer_config=None,
        max_model_len=None,
        disable_sliding_window=False,
        sliding_window=None,
    )
    assert served_length(_SMALL | config) == length


def test_defaults_are_those_of_the_configuration_classes() -> None:
    transformers = pytest.importorskip("transformers")
    for model_type, positions in DEFAULT_POSITIONS.items():
        made = transformers.AutoConfig.for_model(model_type)
        assert made.max_position_embeddings == positions


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, None),
        ({"model_type": "unheard_of"}, None),
        # An explicit null is not filled in.
        ({"model_type": "llama", "max_position_embeddings": None}, None),
        ({"max_position_embeddings": 2048.0}, 2048),
        ({"max_position_embeddings": 2048, "rope_scaling": None}, 2048),
        ({"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 2}}, 4096),
        (
            {"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": None}},
            2048,
        ),
        (
            {
                "max_position_embeddings": 2048,
                "rope_scaling": {"type": "linear", "factor": float("nan")},
            },
            2048,
        ),
    ],
)
def test_the_trained_window(config: dict[str, Any], window: int | None) -> None:
    assert trained_window(config) == window
