# SPDX-License-Identifier: Apache-2.0
"""Where DiffSpec meets vLLM's configuration, metrics and workers.

Data only, no vLLM import; :mod:`diffspec.hosts.surface` checks it against the installed host.
"""

from __future__ import annotations

from diffspec.hosts.touch_point import TouchPoint, names

_CPU_WORKER = "vllm.v1.worker.cpu_worker:CPUWorker"
_GPU_WORKER = "vllm.v1.worker.gpu_worker:Worker"


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
            parameters=names(f"self {arguments}"),
        )
        for method, what, arguments in rows
    )


VLLM_POINTS: tuple[TouchPoint, ...] = (
    # -- configuration, in the process that parses the command line --
    TouchPoint(
        "vllm.engine.arg_utils:EngineArgs.create_speculative_config",
        "wrapped",
        "config",
        "take our keys out, validate, activate",
        "the only place that sees the user's object and the engine flags together",
        parameters=names("self target_model_config target_parallel_config"),
    ),
    TouchPoint(
        "vllm.engine.arg_utils:EngineArgs",
        "read",
        "config",
        "read the flags of the launch",
        "what does not work together is refused before anything is loaded",
        attributes=names(
            "speculative_config async_scheduling kv_cache_dtype kv_transfer_config "
            "kv_offloading_size enable_lora attention_backend attention_config max_num_seqs "
            "enable_prefix_caching compilation_config cudagraph_capture_sizes additional_config"
        ),
    ),
    TouchPoint(
        "vllm.config:SpeculativeConfig",
        "read",
        "config",
        "read the draft's configuration, set disable_padded_drafter_batch",
        "exact acceptance feedback on the CPU; the right next token at chunk borders",
        attributes=names(
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
        attributes=names(
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
        attributes=names(
            "get_hidden_size get_vocab_size use_mla is_hybrid uses_mrope multimodal_config "
            "max_model_len hf_config served_model_name quantization enforce_eager dtype"
        ),
    ),
    TouchPoint(
        "vllm.utils.torch_utils:resolve_kv_cache_dtype_string",
        "called",
        "config",
        "learn what an automatic KV cache type becomes",
        "quantised keys are refused",
        parameters=names("kv_cache_dtype model_config"),
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
        attributes=names("disable_log_stats"),
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
        attributes=names("requested_cpu_memory cache_config model_runner device"),
        platform="cpu",
    ),
    *_worker_rows(_GPU_WORKER, "cuda"),
    TouchPoint(
        _GPU_WORKER,
        "read",
        "worker",
        "learn how much memory the host was given",
        "drafting slots are counted from it",
        attributes=names("requested_memory cache_config model_runner device"),
        platform="cuda",
    ),
    TouchPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        "read",
        "worker",
        "find the drafter and the requests; raise effective_drafter_max_model_len",
        "the host would skip a whole batch past the draft's own length",
        attributes=names(
            "drafter effective_drafter_max_model_len input_batch max_model_len requests"
        ),
    ),
    TouchPoint(
        "vllm.v1.core.sched.output:SchedulerOutput",
        "read",
        "worker",
        "see who ended, was preempted, resumed, and whether anything is left to run",
        "their slots and pages change hands before this step runs",
        attributes=names(
            "finished_req_ids preempted_req_ids scheduled_cached_reqs total_num_scheduled_tokens"
        ),
    ),
    TouchPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._dummy_run",
        "called",
        "load",
        "time forward passes of 1 to K + 3 rows before serving",
        "a first hint of what verifying costs",
        parameters=names("self num_tokens"),
    ),
    TouchPoint(
        "vllm.v1.attention.backend:CommonAttentionMetadata",
        "read",
        "worker",
        "rows, lengths, pages and slots of the batch; set seq_lens_cpu_upper_bound if None",
        "everything a cycle needs to know of the host's step; unpadded() drops these lengths",
        attributes=names(
            "query_start_loc query_start_loc_cpu seq_lens_cpu_upper_bound _seq_lens_cpu "
            "block_table_tensor slot_mapping num_reqs num_actual_tokens"
        ),
    ),
    TouchPoint(
        "vllm.v1.worker.block_table:BlockTable",
        "read",
        "worker",
        "know how many tokens a page of a group's table has",
        "slots count these pages, which may be parts of the scheduler's blocks",
        attributes=names("block_size"),
    ),
    TouchPoint(
        "vllm.distributed.parallel_state:get_tp_group",
        "called",
        "worker",
        "find the ranks that hold the model together",
        "they decide together and add up the masses of their heads",
    ),
    TouchPoint(
        "vllm.distributed.parallel_state:GroupCoordinator",
        "read",
        "worker",
        "know this rank; sum a few numbers per step over the group of CPU processes",
        "what changes the order of collective calls must be the same on all ranks",
        attributes=names("rank_in_group world_size cpu_group"),
    ),
    TouchPoint(
        "vllm.distributed.parallel_state:GroupCoordinator.all_gather",
        "called",
        "load",
        "bring the masses of all ranks' heads together",
        "selections are the same on all ranks",
        parameters=names("self input_ dim"),
    ),
)
