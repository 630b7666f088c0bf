# SPDX-License-Identifier: Apache-2.0
"""Where DiffSpec meets vLLM-Ascend, and what of vLLM itself only this host needs.

Data only, no import of either. What of vLLM every host needs is in the other two tables: the
proposer, the runner and the draft model of vLLM-Ascend inherit from vLLM's.
"""

from __future__ import annotations

from diffspec.hosts.touch_point import Kind, Stage, TouchPoint, names

_WORKER = "vllm_ascend.worker.worker:NPUWorker"
_RUNNER = "vllm_ascend.worker.model_runner_v1:NPUModelRunner"
_EAGLE = "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer"
_ATTENTION = "vllm_ascend.attention.attention_v1"
#: From the 0.28 release candidates on; "dev0" because these come before 0.28.0.
_SINCE_28 = ">=0.28.dev0"

_PROPOSE = (
    "target_token_ids target_positions target_hidden_states next_token_ids "
    "token_indices_to_sample common_attn_metadata target_model_batch_desc sampling_metadata "
    "mm_embed_inputs req_scheduled_tokens long_seq_metadata num_prefill_reqs num_decode_reqs "
    "scheduler_output num_scheduled_tokens num_rejected_tokens_gpu"
)


def _row(
    target: str,
    kind: Kind,
    what: str,
    why: str,
    *,
    parameters: str = "",
    attributes: str = "",
    stage: Stage = "worker",
    releases: str = "",
) -> TouchPoint:
    return TouchPoint(
        target,
        kind,
        stage,
        what,
        why,
        parameters=names(parameters),
        attributes=names(attributes),
        platform="npu",
        releases=releases,
    )


ASCEND_POINTS: tuple[TouchPoint, ...] = (
    # -- configuration --
    _row(
        "vllm_ascend.platform:NPUPlatform",
        "read",
        "recognise the device; a worker class that is set already stays",
        "our worker class is set before the platform would choose its own",
        attributes="device_type check_and_update_config",
        stage="config",
    ),
    _row(
        "vllm_ascend.ascend_config:AscendConfig",
        "read",
        "see that the keys of --additional-config that are refused have these names",
        "a renamed key would not be refused",
        attributes="xlite_graph_config finegrained_tp_config",
        stage="config",
    ),
    _row(
        "vllm_ascend.ascend_config:AscendConfig",
        "read",
        "see that the host's own draft window is asked for by this name",
        "both would choose what the draft attends to",
        attributes="draft_window_size",
        stage="config",
        releases=_SINCE_28,
    ),
    # -- the worker and its runner --
    _row(
        f"{_WORKER}.init_device",
        "overridden",
        "check the surface, attach to the drafter",
        "the runner exists from here",
        parameters="self",
    ),
    _row(
        f"{_WORKER}.load_model",
        "overridden",
        "put the query tap on once the models are loaded",
        "a quantisation may replace an attention layer's implementation while loading",
        parameters="self",
    ),
    _row(
        f"{_WORKER}.initialize_from_config",
        "overridden",
        "find page layouts, allocate",
        "KV pages exist from here",
        parameters="self kv_cache_config",
    ),
    _row(
        f"{_WORKER}.compile_or_warm_up_model",
        "overridden",
        "time a few rows",
        "a first hint for the depth policy",
        parameters="self",
    ),
    _row(
        f"{_WORKER}.execute_model",
        "overridden",
        "see finished and resumed requests",
        "a drafter never sees them",
        parameters="self scheduler_output",
    ),
    _row(
        f"{_WORKER}.take_draft_token_ids",
        "overridden",
        "hand on as many drafts a request as were decided",
        "the proposer returns a tensor, which has one width",
        parameters="self",
    ),
    _row(
        _WORKER,
        "read",
        "learn how much memory the host was given",
        "drafting slots are counted from it",
        attributes="requested_memory cache_config model_runner device",
    ),
    _row(
        _RUNNER,
        "read",
        "find the drafter and the requests",
        "rows of a batch are told by request",
        attributes="drafter input_batch requests max_model_len effective_drafter_max_model_len",
    ),
    _row(
        f"{_RUNNER}._set_up_drafter",
        "read",
        "know when the drafter is built",
        "it has to be there when init_device returns",
        parameters="self",
    ),
    _row(
        f"{_RUNNER}._get_drafter",
        "read",
        "know who builds it",
        "what it builds is recognised, not replaced",
        parameters="self",
    ),
    _row(
        f"{_RUNNER}.propose_draft_token_ids",
        "read",
        "know what the runner hands to the drafter",
        "the keywords of its call are those of _propose below",
        parameters=(
            "self valid_sampled_token_ids sampling_metadata scheduler_output spec_decode_metadata "
            "spec_decode_common_attn_metadata positions num_scheduled_tokens hidden_states "
            "aux_hidden_states sample_hidden_states target_model_batch_desc"
        ),
    ),
    _row(
        f"{_RUNNER}.take_draft_token_ids",
        "called",
        "let the host cut rows to drafter.dynamic_spec.num_verify_tokens",
        "its own channel for a depth per request; earlier releases have none",
        parameters="self",
        releases=_SINCE_28,
    ),
    _row(
        f"{_RUNNER}._dummy_run",
        "called",
        "time forward passes before serving",
        "a first hint of what verifying costs",
        parameters="self num_tokens with_prefill cudagraph_runtime_mode force_attention "
        "uniform_decode",
        stage="load",
    ),
    # -- the drafter --
    _row(
        "vllm_ascend.spec_decode:get_spec_decode_method",
        "read",
        "know which class the method eagle3 gets",
        "the drafter is recognised by its class",
        parameters="method vllm_config device runner",
    ),
    _row(
        _EAGLE,
        "read",
        "recognise the drafter, find its layers",
        "its pages hold the canonical cache",
        attributes="vllm_config model device dtype max_model_len runner attn_layer_names "
        "kernel_block_size kv_cache_gid _draft_attn_layer_names",
    ),
    _row(
        f"{_EAGLE}._propose",
        "bound",
        "draft with our own cycle",
        "the proposer's one entry from the runner on this host",
        parameters=f"self {_PROPOSE}",
        releases="<0.28.dev0",
    ),
    _row(
        f"{_EAGLE}._propose",
        "bound",
        "draft with our own cycle",
        "the proposer's one entry from the runner on this host",
        parameters=f"self num_speculative_tokens {_PROPOSE}",
        releases=_SINCE_28,
    ),
    _row(
        f"{_EAGLE}.prepare_inputs",
        "bound",
        "see what was sampled and drafted per request",
        "acceptance feedback of unpadded batches",
        parameters="self common_attn_metadata sampled_token_ids num_draft_tokens",
    ),
    _row(
        f"{_EAGLE}.prepare_inputs_padded",
        "bound",
        "see how many rows of each request were accepted",
        "rows past the accepted one are never taken in",
        parameters="self common_attn_metadata spec_decode_metadata valid_sampled_tokens_count",
    ),
    _row(
        f"{_EAGLE}.prepare_next_token_ids_padded",
        "bound",
        "put the right token at the end of a prompt's chunk",
        "the host takes the prompt's last token while a prompt is still being read",
        parameters=(
            "self sampled_token_ids requests gpu_input_batch discard_request_indices "
            "num_discarded_requests"
        ),
    ),
    _row(
        f"{_EAGLE}.load_model",
        "bound",
        "check the draft's parts once they are loaded",
        "a draft class without them is refused by name",
        parameters="self model",
    ),
    _row(
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
    _row(
        f"{_ATTENTION}:AscendAttentionBackend.get_kv_cache_shape",
        "called",
        "learn which of the two page layouts holds",
        "blocks of tokens by heads, or of heads by tokens",
        parameters="num_blocks block_size num_kv_heads head_size",
    ),
    _row(
        f"{_ATTENTION}:AscendAttentionBackendImpl.forward",
        "wrapped",
        "copy query rows of one target layer, on that layer's instance alone",
        "retrieval scores chunks with the target's own queries",
        parameters=(
            "self layer query key value kv_cache attn_metadata output output_scale "
            "output_block_scale"
        ),
    ),
    _row(
        f"{_ATTENTION}:AscendAttentionBackendImpl.do_kv_cache_update",
        "called",
        "write digit-coded keys and read them back; write the draft's unrotated keys",
        "learns the page layout instead of assuming it",
        parameters="self layer key value kv_cache slot_mapping",
    ),
    _row(
        f"{_ATTENTION}:AscendAttentionBackendImpl",
        "read",
        "put its pages back after the read-back",
        "the first call of do_kv_cache_update keeps the pages it was given",
        attributes="key_cache value_cache",
    ),
    _row(
        f"{_ATTENTION}:AscendAttentionBackendImpl.reshape_and_cache",
        "read",
        "know that forward writes keys and values through it",
        "the draft's forward, which would write rotated keys, must not run",
        parameters="self query key value kv_cache attn_metadata output",
    ),
    _row(
        f"{_ATTENTION}:AscendMetadata",
        "read",
        "tell a request's last rows",
        "only these can be the last accepted row",
        attributes="num_actual_tokens query_start_loc seq_lens block_tables slot_mapping",
    ),
    _row(
        "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
        "read",
        "rows, lengths, pages and slots of the batch",
        "everything a cycle needs to know of the host's step",
        attributes="query_start_loc query_start_loc_cpu seq_lens seq_lens_cpu block_table_tensor "
        "slot_mapping num_reqs num_actual_tokens",
    ),
    # -- the draft's parts --
    _row(
        "vllm_ascend.ops.rotary_embedding:AscendRotaryEmbedding",
        "read",
        "take the table of cosines and sines",
        "selected keys are rotated at local positions",
        attributes="cos_sin_cache is_neox_style",
        stage="load",
    ),
    _row(
        "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding.forward_static",
        "called",
        "rotate with plain torch operations",
        "the host's own rotation keeps cosines of the target's positions",
        parameters="positions query key head_size rotary_dim cos_sin_cache is_neox_style",
        stage="load",
    ),
)
