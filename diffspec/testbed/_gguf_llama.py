# SPDX-License-Identifier: Apache-2.0
"""Read a Llama GGUF file as a Hugging Face folder's configuration, weights and tokenizer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CONTROL_TOKEN = 3
"""`tokenizer.ggml.token_type` of special tokens."""

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class LlamaGguf:
    """A GGUF file of architecture `llama` with a GPT-2 style byte-level BPE tokenizer.

    Raises:
        ValueError: if the file holds another architecture or another kind of tokenizer.
    """

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        for key, expected in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2")):
            if (found := self._field(key)) != expected:
                raise ValueError(f"{path}: {key} is {found!r}; only {expected!r} is read")

    def config(self, dtype: str) -> dict[str, Any]:
        """Return `config.json`. `dtype` is that of the weights as they will be stored."""
        heads = self._field("llama.attention.head_count")
        hidden = self._field("llama.embedding_length")
        tied = all(t.name != "output.weight" for t in self._reader.tensors)
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self._field("tokenizer.ggml.tokens")),
            "hidden_size": hidden,
            "intermediate_size": self._field("llama.feed_forward_length"),
            "num_hidden_layers": self._field("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._field("llama.attention.head_count_kv"),
            "head_dim": hidden // heads,
            "hidden_act": "silu",
            # GGUF keeps a float32; 9.999999747e-06 is the nearest to 1e-05.
            "rms_norm_eps": float(f"{self._field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": self._field("llama.rope.freq_base"),
            "max_position_embeddings": self._field("llama.context_length"),
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": tied,
            **self._special_ids(),
            "torch_dtype": dtype,
        }

    def generation_config(self) -> dict[str, Any]:
        """Return `generation_config.json`: the special tokens' ids."""
        return self._special_ids()

    def weights(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return the dequantised weights under their transformers names.

        Raises:
            ValueError: for a tensor that a Llama does not have.
        """
        heads = {
            "attn_q": self._field("llama.attention.head_count"),
            "attn_k": self._field("llama.attention.head_count_kv"),
        }
        weights = {}
        for tensor in self._reader.tensors:
            if tensor.name == "rope_freqs.weight":
                continue
            name, part = _hf_name(tensor.name)
            weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
            if part in heads:
                weight = _half_split_rows(weight, heads[part])
            weights[name] = weight.to(dtype).contiguous()
        return weights

    def tokenizer(self) -> Tokenizer:
        """Return the byte-level BPE tokenizer, digits one by one, as SmolLM's models split them."""
        tokens = self._field("tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ", 1)) for m in self._field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(
            models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        kinds = self._field("tokenizer.ggml.token_type")
        tokenizer.add_special_tokens(
            [
                AddedToken(token, normalized=False, special=True)
                for token, kind in zip(tokens, kinds, strict=True)
                if kind == _CONTROL_TOKEN
            ]
        )
        return tokenizer

    def tokenizer_config(self) -> dict[str, Any]:
        """Return `tokenizer_config.json`, with the chat template if the file has one."""
        tokens = self._field("tokenizer.ggml.tokens")
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self._field("llama.context_length"),
            "clean_up_tokenization_spaces": False,
        }
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            if (token_id := self._field(f"tokenizer.ggml.{key}_token_id")) is not None:
                config[f"{name}_token"] = tokens[token_id]
        if template := self._field("tokenizer.chat_template"):
            config["chat_template"] = template
        return config

    def _special_ids(self) -> dict[str, Any]:
        keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        ids = {name: self._field(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
        return {name: token_id for name, token_id in ids.items() if token_id is not None}

    def _field(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()


def _hf_name(gguf_name: str) -> tuple[str, str]:
    """Return the transformers name and, for a layer's tensor, its GGUF part name."""
    if gguf_name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[gguf_name], ""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", gguf_name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ValueError(f"unexpected tensor {gguf_name!r} in a Llama GGUF file")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight", match[2]


def _half_split_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder Q or K rows `[heads * dim, in]` from llama.cpp's order to transformers'.

    llama.cpp rotates rows 2i and 2i + 1 of a head together, transformers rows i and i + dim / 2.
    """
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)
