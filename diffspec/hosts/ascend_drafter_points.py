# SPDX-License-Identifier: Apache-2.0
"""Where DiffSpec meets vLLM-Ascend's drafter, its attention and what of vLLM only this host needs.

Data only, no import of either.
"""

from __future__ import annotations

from diffspec.hosts.ascend_points import SINCE_28, npu_row
from diffspec.hosts.touch_point import TouchPoint

_EAGLE = "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer"
_ATTENTION = "vllm_ascend.attention.attention_v1"

_PROPOSE = (
    "target_token_ids target_positions target_hidden_states next_token_ids "
    "token_indices_to_sample common_attn_metadata target_model_batch_desc sampling_metadata "
    "mm_embed_inputs req_scheduled_tokens long_seq_metadata num_prefill_reqs num_decode_reqs "
    "scheduler_output num_scheduled_tokens num_rejected_tokens_gpu"
)

ASCEND_DRAFTER_POINTS: tuple[TouchPoint, ...] = (
    # -- the drafter --
    npu_row(
        "vllm_ascend.spec_decode:get_spec_decode_method",
        "read",
        "know which class the method eagle3 gets",
        "the drafter is recognised by its class",
        parameters="method vllm_config device runner",
    ),
    npu_row(
        _EAGLE,
        "read",
        "recognise the drafter, find its layers",
        "its pages hold the canonical cache",
        attributes="vllm_config speculative_config model device dtype max_model_len "
        "kv_cache_gid _draft_attn_layer_names",
    ),
    npu_row(
        f"{_EAGLE}._propose",
        "bound",
        "draft with our own cycle",
        "the proposer's one entry from the runner on this host",
        parameters=f"self {_PROPOSE}",
        releases="<0.28.dev0",
    ),
    npu_row(
        f"{_EAGLE}._propose",
        "bound",
        "draft with our own cycle",
        "the proposer's one entry from the runner on this host",
        parameters=f"self num_speculative_tokens {_PROPOSE}",
        releases=SINCE_28,
    ),
    npu_row(
        f"{_EAGLE}.prepare_inputs_padded",
        "bound",
        "see how many rows of each request were accepted",
        "rows past the accepted one are never taken in",
        parameters="self common_attn_metadata spec_decode_metadata valid_sampled_tokens_count",
    ),
    npu_row(
        f"{_EAGLE}.prepare_next_token_ids_padded",
        "bound",
        "put the right token at the end of a prompt's chunk",
        "the host takes the prompt's last token while a prompt is still being read",
        parameters=(
            "self sampled_token_ids requests gpu_input_batch discard_request_indices "
            "num_discarded_requests"
        ),
    ),
    npu_row(
        f"{_EAGLE}.load_model",
        "bound",
        "check the draft's parts once they are loaded",
        "a draft class without them is refused by name",
        parameters="self model",
    ),
    npu_row(
        f"{_EAGLE}.dummy_run",
        "bound",
        "warm up our shapes, not the host's draft loop",
        "the host's drafter never runs under DiffSpec",
        parameters=(
            "self num_tokens with_prefill in_graph_capturing num_reqs num_tokens_across_dp "
            "aclgraph_runtime_mode batch_descriptor dummy_compute_logits is_profile"
        ),
    ),
    # -- attention: queries and pages --
    npu_row(
        f"{_ATTENTION}:AscendAttentionBackend.get_kv_cache_shape",
        "read",
        "know that pages are of tokens by heads or of heads by tokens",
        "which of the two it is, is found out by writing",
        parameters="num_blocks block_size num_kv_heads head_size",
    ),
    npu_row(
        f"{_ATTENTION}:AscendAttentionBackend",
        "read",
        "learn how many tokens a page of the block table has",
        "the host cuts its blocks into pages its attention can read",
        attributes="get_supported_kernel_block_sizes",
    ),
    npu_row(
        f"{_ATTENTION}:AscendAttentionBackend.get_supported_kernel_block_sizes",
        "read",
        "know how many tokens a page of the block tables has",
        "the scoring workspace is allocated before there are pages",
    ),
    npu_row(
        f"{_ATTENTION}:AscendAttentionBackendImpl.forward",
        "wrapped",
        "copy query rows of one target layer, on that layer's instance alone",
        "retrieval scores chunks with the target's own queries",
        parameters=(
            "self layer query key value kv_cache attn_metadata output output_scale "
            "output_block_scale"
        ),
    ),
    npu_row(
        f"{_ATTENTION}:AscendAttentionBackendImpl.do_kv_cache_update",
        "called",
        "write digit-coded keys and read them back",
        "learns the page layout instead of assuming it",
        parameters="self layer key value kv_cache slot_mapping",
    ),
    npu_row(
        f"{_ATTENTION}:AscendAttentionBackendImpl",
        "read",
        "put its pages back after the read-back",
        "the first call of do_kv_cache_update keeps the pages it was given",
        attributes="key_cache value_cache",
    ),
    npu_row(
        f"{_ATTENTION}:AscendAttentionBackendImpl.reshape_and_cache",
        "read",
        "know that forward writes keys and values through it",
        "the draft's forward, which would write rotated keys, must not run",
        parameters="self query key value kv_cache attn_metadata output",
    ),
    npu_row(
        f"{_ATTENTION}:AscendMetadata",
        "read",
        "tell a request's last rows",
        "only these can be the last accepted row",
        attributes="num_actual_tokens query_start_loc",
    ),
    npu_row(
        "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
        "read",
        "rows, lengths, pages and slots of the batch",
        "everything a cycle needs to know of the host's step",
        attributes="query_start_loc_cpu seq_lens_cpu block_table_tensor slot_mapping "
        "num_actual_tokens",
    ),
    npu_row(
        "vllm.config:CUDAGraphMode",
        "read",
        "refuse graphs that hold whole steps of any shape",
        "rows of a captured step must lie where those of a decode step do",
        attributes="mixed_mode has_full_cudagraphs",
    ),
    # -- the draft's parts --
    npu_row(
        "vllm_ascend.ops.rotary_embedding:AscendRotaryEmbedding",
        "read",
        "take the table of cosines and sines",
        "selected keys are rotated at local positions",
        attributes="cos_sin_cache is_neox_style head_size rotary_dim",
        stage="load",
    ),
    npu_row(
        "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding.forward_static",
        "called",
        "rotate with plain torch operations",
        "the host's own rotation keeps cosines of the target's positions",
        parameters="positions query key head_size rotary_dim cos_sin_cache is_neox_style",
        stage="load",
    ),
)
