# SPDX-License-Identifier: Apache-2.0
"""Where DiffSpec meets vLLM's drafter, its attention and the draft model.

Data only, no vLLM import; :mod:`diffspec.hosts.surface` checks it against the installed host.
"""

from __future__ import annotations

from diffspec.hosts.touch_point import TouchPoint, names

_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"
_BACKENDS = "vllm.v1.attention.backends"
_EAGLE3 = "vllm.model_executor.models.llama_eagle3"


def _attention_rows(module: str, impl: str, metadata: str, platform: str) -> tuple[TouchPoint, ...]:
    """What the query tap and the page reader need of one attention backend."""
    return (
        TouchPoint(
            f"{_BACKENDS}.{module}:{impl}.forward",
            "wrapped",
            "worker",
            "copy query rows of one target layer, on that layer's instance alone",
            "retrieval scores chunks with the target's own queries",
            parameters=names(
                "self layer query key value kv_cache attn_metadata output output_scale "
                "output_block_scale"
            ),
            platform=platform,
        ),
        TouchPoint(
            f"{_BACKENDS}.{module}:{metadata}",
            "read",
            "worker",
            "tell a request's last rows",
            "only these can be the last accepted row",
            attributes=names("num_actual_tokens query_start_loc"),
            platform=platform,
        ),
        TouchPoint(
            f"{_BACKENDS}.{module}:{impl}.do_kv_cache_update",
            "called",
            "worker",
            "write digit-coded keys and read them back",
            "learns the page layout instead of assuming it",
            parameters=names("self layer key value kv_cache slot_mapping"),
            platform=platform,
        ),
    )


DRAFTER_POINTS: tuple[TouchPoint, ...] = (
    TouchPoint(
        "vllm.v1.spec_decode.eagle:EagleProposer",
        "read",
        "worker",
        "recognise the drafter",
        "the runner chooses its code path by this class",
    ),
    TouchPoint(
        _PROPOSER,
        "read",
        "worker",
        "find the draft's KV group and layers",
        "its pages hold the canonical cache",
        attributes=names(
            "vllm_config model device dtype max_model_len kv_cache_gid _draft_attn_layer_names"
        ),
    ),
    TouchPoint(
        f"{_PROPOSER}.propose",
        "bound",
        "worker",
        "draft with our own cycle",
        "the proposer's one entry from the runner",
        parameters=names(
            "self num_speculative_tokens target_token_ids target_positions target_hidden_states "
            "next_token_ids token_indices_to_sample common_attn_metadata sampling_metadata "
            "mm_embed_inputs num_rejected_tokens_gpu slot_mappings"
        ),
    ),
    TouchPoint(
        f"{_PROPOSER}.prepare_inputs",
        "bound",
        "worker",
        "see what was sampled and drafted per request",
        "acceptance feedback and the rows that were kept",
        parameters=names("self common_attn_metadata sampled_token_ids num_draft_tokens"),
    ),
    TouchPoint(
        f"{_PROPOSER}.prepare_next_token_ids_cpu",
        "bound",
        "worker",
        "see what each request sampled, then call the host's own",
        "a request still inside its prompt sampled nothing and is not drafted for",
        parameters=names("self sampled_token_ids requests gpu_input_batch num_scheduled_tokens"),
    ),
    TouchPoint(
        f"{_PROPOSER}.load_model",
        "bound",
        "worker",
        "check the draft's parts once they are loaded",
        "a draft class without them is refused by name",
        parameters=names("self target_model"),
    ),
    TouchPoint(
        f"{_PROPOSER}.dummy_run",
        "bound",
        "worker",
        "warm up our shapes, not the host's draft loop",
        "the host's drafter never runs under DiffSpec",
        parameters=names("self num_tokens use_cudagraphs is_graph_capturing slot_mappings"),
    ),
    *_attention_rows("cpu_attn", "CPUAttentionBackendImpl", "CPUAttentionMetadata", "cpu"),
    *_attention_rows("flash_attn", "FlashAttentionImpl", "FlashAttentionMetadata", "cuda"),
    *_attention_rows("triton_attn", "TritonAttentionImpl", "TritonAttentionMetadata", "cuda"),
    TouchPoint(
        "vllm.config:get_layers_from_vllm_config",
        "called",
        "worker",
        "list the attention layers",
        "the tap goes on the last full-attention target layer",
        parameters=names("vllm_config layer_type layer_names"),
    ),
    TouchPoint(
        "vllm.model_executor.layers.attention:Attention",
        "read",
        "worker",
        "judge a layer and reach its pages",
        "the tap goes on a full-attention decoder layer",
        attributes=names(
            "impl attn_backend kv_cache attn_type sliding_window get_kv_cache_spec num_heads "
            "num_kv_heads head_size"
        ),
    ),
    TouchPoint(
        "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
        "replaced",
        "worker",
        "expand without the CPU stand-in for its kernel",
        "the stand-in writes an int64 copy: temperature and top-k or top-p come back unset",
        parameters=names("x cu_num_tokens num_tokens replace_from replace_to"),
        platform="cpu",
    ),
    # -- the draft's parts --
    TouchPoint(
        f"{_EAGLE3}:Eagle3LlamaForCausalLM",
        "read",
        "load",
        "head and vocabulary map",
        "our cycle runs over the loaded module's parts",
        attributes=names(
            "combine_hidden_states model lm_head logits_processor draft_id_to_target_id"
        ),
    ),
    TouchPoint(
        f"{_EAGLE3}:LlamaModel",
        "read",
        "load",
        "embedding, layer and final norm",
        "our cycle runs over the loaded module's parts",
        attributes=names("embed_tokens layers norm norm_output fc_input_size"),
    ),
    TouchPoint(
        f"{_EAGLE3}:LlamaDecoderLayer",
        "read",
        "load",
        "the one layer's parts",
        "our cycle runs over the loaded module's parts",
        attributes=names(
            "input_layernorm hidden_norm _residual_norm self_attn post_attention_layernorm mlp"
        ),
    ),
    TouchPoint(
        "vllm.model_executor.models.llama:LlamaAttention",
        "read",
        "load",
        "projections, sizes and rotary embedding",
        "keys are needed before rotation",
        attributes=names("qkv_proj o_proj q_size kv_size head_dim scaling rotary_emb attn"),
    ),
    TouchPoint(
        "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding",
        "read",
        "load",
        "take the table of cosines and sines",
        "selected keys are rotated at local positions",
        attributes=names("cos_sin_cache is_neox_style"),
    ),
    TouchPoint(
        "vllm.model_executor.layers.layernorm:RMSNorm",
        "read",
        "load",
        "call the norm's kernel directly where the module is exactly this class",
        "a one-row draft step costs mostly calls; other classes are called as they are",
        attributes=names("variance_epsilon variance_size_override has_weight weight"),
    ),
    TouchPoint(
        "vllm.model_executor.layers.linear:UnquantizedLinearMethod",
        "read",
        "load",
        "call the product's kernel directly where weights are not quantised",
        "a one-row draft step costs mostly calls; other classes are called as they are",
    ),
    TouchPoint(
        "vllm.model_executor.models.llama:LlamaMLP",
        "read",
        "load",
        "chain its two products and its activation directly",
        "a one-row draft step costs mostly calls; other classes are called as they are",
        attributes=names("gate_up_proj down_proj act_fn"),
    ),
)
