# SPDX-License-Identifier: Apache-2.0
"""What is known of a launch, and the form of a rule that judges it; nothing is imported for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: Where a row is judged first: before weights load (and once more in the worker, on what the host
#: made of the flags), or when the models are there.
Where = Literal["config", "load"]


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What is known of a launch; None means not known (yet), and no row refuses on that."""

    platform: str | None = None
    device_name: str | None = None
    method: str | None = None
    depth: int | None = None
    per_batch_depths: object = None
    draft_sample_method: str | None = None
    rejection_sample_method: str | None = None
    heterogeneous_vocab: bool | None = None
    parallel_drafting: bool | None = None
    padded_batches: bool | None = None
    unpadded_batches: bool | None = None
    async_scheduling: bool | None = None
    worker_cls: str | None = None
    our_worker_cls: str | None = None
    v2_runner: bool | None = None
    attention_backend: str | None = None
    attention_class: str | None = None
    prefix_caching: bool | None = None
    quantisation: str | None = None
    enforce_eager: bool | None = None
    graph_mode: str | None = None
    capture_sizes: tuple[int, ...] | None = None
    max_num_seqs: int | None = None
    additional_config: Mapping[str, Any] | None = None
    tensor_parallel_size: int | None = None
    draft_tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    prefill_context_parallel_size: int | None = None
    decode_context_parallel_size: int | None = None
    model_dtype: str | None = None
    kv_cache_dtype: str | None = None
    draft_kv_cache_dtype: str | None = None
    kv_connector: str | None = None
    lora: bool | None = None
    prompt_embeds: bool | None = None
    sleep_mode: bool | None = None
    multimodal: bool | None = None
    vspec: str | None = None
    target_mla: bool | None = None
    target_hybrid: bool | None = None
    target_mrope: bool | None = None
    target_hidden_size: int | None = None
    target_vocab_size: int | None = None
    target_full_attention_layers: int | None = None
    draft_mla: bool | None = None
    draft_layers: int | None = None
    draft_reads_hidden_size: int | None = None
    draft_vocab_size: int | None = None
    draft_heads: int | None = None
    draft_kv_heads: int | None = None
    draft_head_size: float | None = None
    draft_sliding_window: int | None = None
    draft_mrope: bool | None = None
    draft_rope_type: str | None = None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One refusal. ``message`` is a format string over the facts, named ``f``; ``platform`` is the
    device type it is about."""

    id: str
    condition: str
    message: str
    where: Where
    applies: Callable[[LaunchFacts], object]
    platform: str = "any"
