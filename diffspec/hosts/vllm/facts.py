# SPDX-License-Identifier: Apache-2.0
"""Fills :class:`LaunchFacts` from vLLM's objects, at the three moments they become known."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from diffspec.environment import vspec_switched_on
from diffspec.hosts.launch import LaunchFacts
from diffspec.keys import normalise

#: Worker class per device type, as the qualified name vLLM resolves in the worker process.
WORKERS = {
    "cpu": "diffspec.hosts.vllm.cpu_worker.DiffSpecCPUWorker",
    "cuda": "diffspec.hosts.vllm.gpu_worker.DiffSpecGPUWorker",
    "npu": "diffspec.hosts.ascend.worker.DiffSpecNPUWorker",
}
#: Device types whose host hands over padded batches, because its graphs of decode steps want them.
#: Acceptance is known exactly there, too, as long as scheduling is synchronous.
PADDED = frozenset({"npu"})


def device_platform() -> str:
    """The device as the tables name it: ROCm by its own name, though vLLM's type is cuda there."""
    from vllm.platforms import current_platform

    return "rocm" if current_platform.is_rocm() else str(current_platform.device_type)


def flag_facts(
    engine_args: Any, target: Any, parallel: Any, host_keys: Mapping[str, Any]
) -> LaunchFacts:
    """What the flags and the target say, before vLLM builds (and perhaps refuses) the draft.

    ``host_keys`` is the speculative-config object without our keys, as the user wrote it.
    """
    import vllm.envs as envs
    from vllm.utils.torch_utils import resolve_kv_cache_dtype_string

    given = {normalise(key): value for key, value in host_keys.items()}
    platform = device_platform()
    padding = given.get("disable_padded_drafter_batch")
    return replace(
        _model_and_parallel_facts(target, parallel),
        platform=platform,
        device_name=_built_for() if platform == "npu" else None,
        our_worker_cls=WORKERS.get(platform),
        worker_cls=parallel.worker_cls,
        v2_runner=envs.VLLM_USE_V2_MODEL_RUNNER is True,
        attention_backend=_asked_backend(engine_args) if platform == "cuda" else None,
        method=given.get("method") or engine_args.spec_method,
        per_batch_depths=given.get("num_speculative_tokens_per_batch_size"),
        draft_sample_method=given.get("draft_sample_method"),
        rejection_sample_method=given.get("rejection_sample_method"),
        model_dtype=_dtype(target),
        heterogeneous_vocab=given.get("use_heterogeneous_vocab") is True,
        parallel_drafting=given.get("parallel_drafting") is True,
        padded_batches=padding is False,
        unpadded_batches=padding is True,
        draft_tensor_parallel_size=given.get("draft_tensor_parallel_size"),
        draft_kv_cache_dtype=given.get("kv_cache_dtype"),
        async_scheduling=engine_args.async_scheduling is True,
        kv_cache_dtype=resolve_kv_cache_dtype_string(engine_args.kv_cache_dtype, target),
        kv_connector=_connector(engine_args.kv_transfer_config, engine_args.kv_offloading_size),
        lora=bool(engine_args.enable_lora),
        prompt_embeds=bool(target.enable_prompt_embeds),
        sleep_mode=bool(target.enable_sleep_mode),
        vspec=vspec_marker(type(engine_args)),
        prefix_caching=engine_args.enable_prefix_caching,
        max_num_seqs=engine_args.max_num_seqs,
        additional_config=_mapping(engine_args.additional_config),
        **_graphs(engine_args.compilation_config, engine_args.cudagraph_capture_sizes),
    )


def draft_facts(config: Any) -> LaunchFacts:
    """What the speculative configuration vLLM built says of the draft and of how it is used."""
    facts = LaunchFacts(
        method=config.method,
        depth=config.num_speculative_tokens,
        per_batch_depths=config.num_speculative_tokens_per_batch_size,
        draft_sample_method=config.draft_sample_method,
        rejection_sample_method=config.rejection_sample_method,
        model_dtype=_dtype(config.target_model_config),
        heterogeneous_vocab=config.use_heterogeneous_vocab,
        parallel_drafting=config.parallel_drafting,
        tensor_parallel_size=config.target_parallel_config.tensor_parallel_size,
        draft_tensor_parallel_size=config.draft_tensor_parallel_size,
        draft_kv_cache_dtype=config.kv_cache_dtype,
        target_hidden_size=config.target_model_config.get_hidden_size(),
        target_vocab_size=config.target_model_config.get_vocab_size(),
    )
    draft = config.draft_model_config
    if config.method != "eagle3" or draft is None:
        return facts
    hf = draft.hf_config
    eagle = getattr(hf, "eagle_config", None) or {}
    heads = getattr(hf, "num_attention_heads", None)
    width = draft.get_hidden_size()
    reads = getattr(hf, "target_hidden_size", None) or width
    size = getattr(hf, "head_dim", None) or (width / heads if heads else None)
    return replace(
        facts,
        draft_mla=draft.use_mla,
        draft_layers=getattr(hf, "num_hidden_layers", None),
        # Without the feature projection the target's states enter the layer as they are.
        draft_reads_hidden_size=reads if eagle.get("use_aux_hidden_state", True) else width,
        draft_vocab_size=getattr(hf, "vocab_size", None),
        draft_heads=heads,
        draft_kv_heads=getattr(hf, "num_key_value_heads", None) or heads,
        draft_head_size=size,
        draft_sliding_window=_sliding_window(hf),
        draft_mrope=draft.uses_mrope,
        draft_rope_type=_rope_type(hf),
    )


def _dtype(model: Any) -> str:
    """The name by which ``--kv-cache-dtype`` would call the model's own type."""
    return str(model.dtype).removeprefix("torch.")


def worker_facts(vllm_config: Any) -> LaunchFacts:
    """What the final configuration says in a worker, where the flags are not known any more.

    Lets a worker repeat the refusals on what the host made of the flags in the meantime.
    """
    from vllm.v1.spec_decode.eagle import EagleProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    config, model = vllm_config.speculative_config, vllm_config.model_config
    known = _model_and_parallel_facts(model, vllm_config.parallel_config)
    draft, platform = draft_facts(config), device_platform()
    names = [f for f in LaunchFacts.__dataclass_fields__ if getattr(draft, f) is not None]
    transfer = vllm_config.kv_transfer_config
    return replace(
        known,
        **{name: getattr(draft, name) for name in names},
        platform=platform,
        our_worker_cls=WORKERS.get(platform),
        worker_cls=vllm_config.parallel_config.worker_cls,
        v2_runner=vllm_config.use_v2_model_runner,
        padded_batches=not config.disable_padded_drafter_batch,
        unpadded_batches=config.disable_padded_drafter_batch,
        async_scheduling=bool(vllm_config.scheduler_config.async_scheduling),
        kv_cache_dtype=vllm_config.cache_config.cache_dtype,
        kv_connector=_connector(transfer, None),
        lora=vllm_config.lora_config is not None,
        prompt_embeds=bool(model.enable_prompt_embeds),
        sleep_mode=bool(model.enable_sleep_mode),
        vspec=vspec_marker(EagleProposer, GPUModelRunner),
        device_name=_device_name(),
        additional_config=_mapping(vllm_config.additional_config),
    )


def vspec_marker(*classes: type) -> str | None:
    """What shows that vSpec is at work here: a switch in the environment or a patched host class.

    That its package is installed or imported is not enough, since vLLM imports every plugin.
    """
    if switch := vspec_switched_on(os.environ):
        return switch
    for cls in (base for given in classes for base in given.__mro__):
        for name, member in vars(cls).items():
            if "vspec" in name.lower() or "vspec" in str(getattr(member, "__module__", "")):
                return f"{cls.__name__}.{name} is patched"
    return None


def _model_and_parallel_facts(target: Any, parallel: Any) -> LaunchFacts:
    multimodal = target.multimodal_config
    return LaunchFacts(
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        data_parallel_size=parallel.data_parallel_size,
        prefill_context_parallel_size=parallel.prefill_context_parallel_size,
        decode_context_parallel_size=parallel.decode_context_parallel_size,
        multimodal=multimodal is not None and not multimodal.language_model_only,
        target_mla=target.use_mla,
        target_hybrid=target.is_hybrid,
        target_mrope=target.uses_mrope,
        quantisation=target.quantization,
        enforce_eager=bool(target.enforce_eager),
        target_hidden_size=target.get_hidden_size(),
        target_vocab_size=target.get_vocab_size(),
    )


def _graphs(compilation: Any, sizes: Sequence[int] | None) -> dict[str, Any]:
    """Graph mode and captured sizes as asked for; None and empty leave them to vLLM."""
    mode = compilation.cudagraph_mode
    captured = sizes or compilation.cudagraph_capture_sizes or ()
    return {
        "graph_mode": None if mode is None else str(getattr(mode, "name", mode)),
        "capture_sizes": tuple(captured),
    }


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _built_for() -> str | None:
    """The kind of device that vLLM-Ascend was built for, by what its build wrote down.

    Its first worker compares that with the device. Asking the device itself would open it in the
    process that starts the workers.
    """
    try:
        kind = importlib.import_module("vllm_ascend._build_info").__device_type__
    except (ImportError, AttributeError):
        return None
    return f"Ascend {str(kind).lstrip('_')}"


def _device_name() -> str | None:
    from vllm.platforms import current_platform

    name = current_platform.get_device_name()
    return name if isinstance(name, str) else None


def _asked_backend(engine_args: Any) -> str | None:
    """The attention backend that was asked for; None leaves the choice to vLLM."""
    backend = engine_args.attention_backend or engine_args.attention_config.backend
    name = str(getattr(backend, "name", backend)).upper()
    return None if name in ("NONE", "AUTO") else name


def _connector(transfer: Any, offloading_size: object) -> str | None:
    if transfer is not None:
        name = getattr(transfer, "kv_connector", None)
        return str(name) if name is not None else None
    return "of --kv-offloading-size" if offloading_size is not None else None


def _sliding_window(hf: Any) -> int | None:
    window: int | None = getattr(hf, "sliding_window", None)
    if layer_types := getattr(hf, "layer_types", None):
        return window if "sliding_attention" in layer_types else None
    return window if getattr(hf, "use_sliding_window", True) else None


def _rope_type(hf: Any) -> str | None:
    rope = getattr(hf, "rope_parameters", None)
    if not rope:
        return None
    # One set of parameters, or one per layer type; a one-layer draft uses the first.
    if "rope_type" not in rope and all(isinstance(v, Mapping) for v in rope.values()):
        rope = next(iter(rope.values()))
    kind = rope.get("rope_type")
    return str(kind) if kind is not None else None
