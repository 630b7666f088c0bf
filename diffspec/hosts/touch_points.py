# SPDX-License-Identifier: Apache-2.0
"""Every place where DiffSpec meets vLLM: what is done there, why, and what it has to look like.

Data only, no vLLM import; :mod:`diffspec.hosts.surface` checks it against the installed host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["wrapped", "replaced", "overridden", "bound", "called", "read"]
Stage = Literal["config", "worker", "load"]


@dataclass(frozen=True, slots=True)
class TouchPoint:
    """One touch point.

    ``target`` is ``module:qualified.name``. ``parameters`` are the parameter names a callable must
    have, in order; more are fine if they have defaults. ``attributes`` are names that instances or
    the class must have. ``kind``: *wrapped* (calls through), *replaced* (module attribute set),
    *overridden* (in a subclass of ours), *bound* (set on one instance), *called*, *read*.
    ``stage`` is the first moment at which it is needed and checked. ``platform`` restricts the row
    to one device type. Release lines are bound in :mod:`diffspec.hosts.surface`; the one replaced
    function also in :data:`diffspec.hosts.vllm.sampling_fix.AFFECTED`.
    """

    target: str
    kind: Kind
    stage: Stage
    what: str
    why: str
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    platform: str = "any"

    @property
    def module(self) -> str:
        """The module part of ``target``."""
        return self.target.partition(":")[0]

    @property
    def name(self) -> str:
        """The qualified name inside the module; the row's name in messages."""
        return self.target.partition(":")[2]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"
_CPU_WORKER = "vllm.v1.worker.cpu_worker:CPUWorker"
_GPU_WORKER = "vllm.v1.worker.gpu_worker:Worker"
_BACKENDS = "vllm.v1.attention.backends"
_EAGLE3 = "vllm.model_executor.models.llama_eagle3"


def _worker_rows(cls: str, platform: str) -> tuple[TouchPoint, ...]:
    """The methods our worker subclass overrides; each also calls the host's own."""
    rows = (
        ("init_device", "check the surface, attach to the drafter", "the runner exists from here"),
        ("initialize_from_config", "find page layouts, allocate", "KV pages exist from here"),
        ("compile_or_warm_up_model", "time a few rows", "a first hint for the depth policy"),
        ("execute_model", "see finished and resumed requests", "a drafter never sees them"),
    )
    arguments = {
        "initialize_from_config": ("kv_cache_config",),
        "execute_model": ("scheduler_output",),
    }
    return tuple(
        TouchPoint(
            f"{cls}.{method}",
            "overridden",
            "worker",
            what,
            why,
            parameters=("self", *arguments.get(method, ())),
            platform=platform,
        )
        for method, what, why in rows
    )


def _stat_logger_rows() -> tuple[TouchPoint, ...]:
    """What our stat logger implements; vLLM calls it in the API process."""
    rows = (
        ("__init__", "open the worker's channel", "vllm_config engine_indexes"),
        ("log_engine_initialized", "create collectors in /metrics", ""),
        (
            "record",
            "bring them up to the worker's numbers",
            "scheduler_stats iteration_stats mm_cache_stats engine_idx",
        ),
        ("log", "write a log line a minute", ""),
    )
    return tuple(
        TouchPoint(
            f"vllm.v1.metrics.loggers:AggregateStatLoggerBase.{method}",
            "overridden",
            "config",
            what,
            "numbers of a worker have no other way into vLLM's metrics",
            parameters=_names(f"self {arguments}"),
        )
        for method, what, arguments in rows
    )


def _attention_rows(module: str, impl: str, metadata: str, platform: str) -> tuple[TouchPoint, ...]:
    """What the query tap and the page reader need of one attention backend."""
    return (
        TouchPoint(
            f"{_BACKENDS}.{module}:{impl}.forward",
            "wrapped",
            "worker",
            "copy query rows of one target layer, on that layer's instance alone",
            "retrieval scores chunks with the target's own queries",
            parameters=_names(
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
            attributes=_names("num_actual_tokens query_start_loc"),
            platform=platform,
        ),
        TouchPoint(
            f"{_BACKENDS}.{module}:{impl}.do_kv_cache_update",
            "called",
            "worker",
            "write digit-coded keys and read them back",
            "learns the page layout instead of assuming it",
            parameters=_names("self layer key value kv_cache slot_mapping"),
            platform=platform,
        ),
    )


TOUCH_POINTS: tuple[TouchPoint, ...] = (
    # -- configuration, in the process that parses the command line --
    TouchPoint(
        "vllm.engine.arg_utils:EngineArgs.create_speculative_config",
        "wrapped",
        "config",
        "take our keys out, validate, activate",
        "the only place that sees the user's object and the engine flags together",
        parameters=_names("self target_model_config target_parallel_config"),
    ),
    TouchPoint(
        "vllm.config:SpeculativeConfig",
        "read",
        "config",
        "read the draft's configuration, set disable_padded_drafter_batch",
        "exact acceptance feedback on the CPU; the right next token at chunk borders",
        attributes=_names(
            "method num_speculative_tokens draft_model_config draft_tensor_parallel_size "
            "disable_padded_drafter_batch draft_sample_method parallel_drafting max_model_len"
        ),
    ),
    TouchPoint(
        "vllm.config:ParallelConfig",
        "read",
        "config",
        "read the parallel sizes, set worker_cls",
        "a worker class is the host's documented way into the worker process",
        attributes=_names(
            "worker_cls tensor_parallel_size pipeline_parallel_size data_parallel_size "
            "prefill_context_parallel_size decode_context_parallel_size _api_process_count "
            "_api_process_rank"
        ),
    ),
    TouchPoint(
        "vllm.config:ModelConfig",
        "read",
        "config",
        "read the shapes of target and draft",
        "a pair that does not fit is refused before weights are loaded",
        attributes=_names(
            "get_hidden_size get_vocab_size use_mla is_hybrid uses_mrope multimodal_config "
            "max_model_len hf_config served_model_name"
        ),
    ),
    TouchPoint(
        "vllm.utils.torch_utils:resolve_kv_cache_dtype_string",
        "called",
        "config",
        "learn what an automatic KV cache type becomes",
        "quantised keys are refused",
        parameters=_names("kv_cache_dtype model_config"),
    ),
    TouchPoint(
        "vllm.triton_utils:HAS_TRITON",
        "read",
        "config",
        "tell whether vLLM would choose the V2 model runner",
        "the V2 runner has none of the proposer classes below",
    ),
    TouchPoint(
        "vllm.engine.arg_utils:AsyncEngineArgs",
        "read",
        "config",
        "tell a server from an offline engine; see whether statistics were switched off",
        "numbers are reported where vLLM reports its own and loads stat loggers",
        attributes=_names("disable_log_stats"),
    ),
    TouchPoint(
        "vllm.v1.engine.async_llm:load_stat_logger_plugin_factories",
        "wrapped",
        "config",
        "add our stat logger for this launch",
        "through vLLM's entry point every launch on the machine would load it",
    ),
    *_stat_logger_rows(),
    # -- the worker, before and after the models are loaded --
    *_worker_rows(_CPU_WORKER, "cpu"),
    TouchPoint(
        _CPU_WORKER,
        "read",
        "worker",
        "learn how much memory the host was given",
        "drafting slots are counted from it",
        attributes=_names("requested_cpu_memory cache_config model_runner device"),
        platform="cpu",
    ),
    *_worker_rows(_GPU_WORKER, "cuda"),
    TouchPoint(
        _GPU_WORKER,
        "read",
        "worker",
        "learn how much memory the host was given",
        "drafting slots are counted from it",
        attributes=_names("requested_memory cache_config model_runner device"),
        platform="cuda",
    ),
    TouchPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        "read",
        "worker",
        "find the drafter and the requests; raise effective_drafter_max_model_len",
        "the host would skip a whole batch past the draft's own length",
        attributes=_names(
            "drafter effective_drafter_max_model_len input_batch max_model_len requests"
        ),
    ),
    TouchPoint(
        "vllm.v1.core.sched.output:SchedulerOutput",
        "read",
        "worker",
        "see who ended, was preempted, resumed",
        "their slots and pages change hands before this step runs",
        attributes=_names("finished_req_ids preempted_req_ids scheduled_cached_reqs"),
    ),
    TouchPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._dummy_run",
        "called",
        "load",
        "time forward passes of 1 to K + 1 rows before serving",
        "a first hint of what verifying costs",
        parameters=_names("self num_tokens"),
    ),
    TouchPoint(
        "vllm.v1.attention.backend:CommonAttentionMetadata",
        "read",
        "worker",
        "rows, lengths, pages and slots of the batch; set seq_lens_cpu_upper_bound if None",
        "everything a cycle needs to know of the host's step; unpadded() drops these lengths",
        attributes=_names(
            "query_start_loc query_start_loc_cpu seq_lens_cpu_upper_bound _seq_lens_cpu "
            "block_table_tensor slot_mapping num_reqs num_actual_tokens"
        ),
    ),
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
        "find the draft's KV group, block size and layers",
        "its pages hold the canonical cache",
        attributes=_names(
            "vllm_config model device dtype max_model_len block_size kv_cache_gid "
            "_draft_attn_layer_names"
        ),
    ),
    TouchPoint(
        f"{_PROPOSER}.propose",
        "bound",
        "worker",
        "draft with our own cycle",
        "the proposer's one entry from the runner",
        parameters=_names(
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
        parameters=_names("self common_attn_metadata sampled_token_ids num_draft_tokens"),
    ),
    TouchPoint(
        f"{_PROPOSER}.prepare_next_token_ids_cpu",
        "bound",
        "worker",
        "see what each request sampled, then call the host's own",
        "a request still inside its prompt sampled nothing and is not drafted for",
        parameters=_names("self sampled_token_ids requests gpu_input_batch num_scheduled_tokens"),
    ),
    TouchPoint(
        f"{_PROPOSER}.load_model",
        "bound",
        "worker",
        "check the draft's parts once they are loaded",
        "a draft class without them is refused by name",
        parameters=_names("self target_model"),
    ),
    TouchPoint(
        f"{_PROPOSER}.dummy_run",
        "bound",
        "worker",
        "warm up our shapes, not the host's draft loop",
        "the host's drafter never runs under DiffSpec",
        parameters=_names("self num_tokens use_cudagraphs is_graph_capturing slot_mappings"),
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
        parameters=_names("vllm_config layer_type layer_names"),
    ),
    TouchPoint(
        "vllm.model_executor.layers.attention:Attention",
        "read",
        "worker",
        "judge a layer and reach its pages",
        "the tap goes on a full-attention decoder layer",
        attributes=_names(
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
        parameters=_names("x cu_num_tokens num_tokens replace_from replace_to"),
        platform="cpu",
    ),
    # -- the draft's parts --
    TouchPoint(
        f"{_EAGLE3}:Eagle3LlamaForCausalLM",
        "read",
        "load",
        "head and vocabulary map",
        "our cycle runs over the loaded module's parts",
        attributes=_names(
            "combine_hidden_states model lm_head logits_processor draft_id_to_target_id"
        ),
    ),
    TouchPoint(
        f"{_EAGLE3}:LlamaModel",
        "read",
        "load",
        "embedding, layer and final norm",
        "our cycle runs over the loaded module's parts",
        attributes=_names("embed_tokens layers norm norm_output fc_input_size"),
    ),
    TouchPoint(
        f"{_EAGLE3}:LlamaDecoderLayer",
        "read",
        "load",
        "the one layer's parts",
        "our cycle runs over the loaded module's parts",
        attributes=_names(
            "input_layernorm hidden_norm _residual_norm self_attn post_attention_layernorm mlp"
        ),
    ),
    TouchPoint(
        "vllm.model_executor.models.llama:LlamaAttention",
        "read",
        "load",
        "projections, sizes and rotary embedding",
        "keys are needed before rotation",
        attributes=_names("qkv_proj o_proj q_size kv_size head_dim scaling rotary_emb attn"),
    ),
    TouchPoint(
        "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding",
        "read",
        "load",
        "take the table of cosines and sines",
        "selected keys are rotated at local positions",
        attributes=_names("cos_sin_cache is_neox_style"),
    ),
    TouchPoint(
        "vllm.model_executor.layers.layernorm:RMSNorm",
        "read",
        "load",
        "call the norm's kernel directly where the module is exactly this class",
        "a one-row draft step costs mostly calls; other classes are called as they are",
        attributes=_names("variance_epsilon variance_size_override has_weight weight"),
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
        attributes=_names("gate_up_proj down_proj act_fn"),
    ),
)
