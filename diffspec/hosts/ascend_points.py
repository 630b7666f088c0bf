# SPDX-License-Identifier: Apache-2.0
"""Where DiffSpec meets vLLM-Ascend's configuration, worker and model runner.

Data only, no import of either. What of vLLM every host needs is in the other two tables: the
proposer, the runner and the draft model of vLLM-Ascend inherit from vLLM's.
"""

from __future__ import annotations

from diffspec.hosts.touch_point import Kind, Stage, TouchPoint, names

_WORKER = "vllm_ascend.worker.worker:NPUWorker"
_RUNNER = "vllm_ascend.worker.model_runner_v1:NPUModelRunner"
#: From the 0.28 release candidates on; "dev0" because these come before 0.28.0.
SINCE_28 = ">=0.28.dev0"


def npu_row(
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
    """A row for NPUs; ``parameters`` and ``attributes`` are names with blanks between."""
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
    npu_row(
        "vllm_ascend.platform:NPUPlatform",
        "read",
        "recognise the device; a worker class that is set already stays",
        "our worker class is set before the platform would choose its own",
        attributes="device_type check_and_update_config",
        stage="config",
    ),
    npu_row(
        "vllm_ascend.ascend_config:AscendConfig",
        "read",
        "see that the keys of --additional-config that are refused have these names",
        "a renamed key would not be refused",
        attributes="xlite_graph_config finegrained_tp_config",
        stage="config",
    ),
    npu_row(
        "vllm_ascend.ascend_config:AscendConfig",
        "read",
        "see that the host's own draft window is asked for by this name",
        "both would choose what the draft attends to",
        attributes="draft_window_size",
        stage="config",
        releases=SINCE_28,
    ),
    # -- the worker and its runner --
    npu_row(
        f"{_WORKER}.init_device",
        "overridden",
        "check the surface, attach to the drafter",
        "the runner exists from here",
        parameters="self",
    ),
    npu_row(
        f"{_WORKER}.initialize_from_config",
        "overridden",
        "find page layouts, allocate",
        "KV pages exist from here",
        parameters="self kv_cache_config",
    ),
    npu_row(
        f"{_WORKER}.compile_or_warm_up_model",
        "overridden",
        "call the host's own; other devices then time a few rows",
        "here costs are learned from served steps alone",
        parameters="self",
    ),
    npu_row(
        f"{_WORKER}.execute_model",
        "overridden",
        "see finished and resumed requests",
        "a drafter never sees them",
        parameters="self scheduler_output",
    ),
    npu_row(
        _WORKER,
        "read",
        "learn how much memory the host was given",
        "drafting slots are counted from it",
        attributes="requested_memory cache_config model_runner device",
    ),
    npu_row(
        _RUNNER,
        "read",
        "find the drafter and the requests",
        "rows of a batch are told by request",
        attributes="drafter input_batch requests discard_request_indices max_model_len "
        "effective_drafter_max_model_len",
    ),
    npu_row(
        "vllm_ascend.worker.npu_input_batch:NPUInputBatch",
        "read",
        "tell rows by request, and the last token of a request that has no draft",
        "recurrent targets are given that token once more",
        attributes="req_ids num_reqs block_table vocab_size token_ids_cpu num_tokens_no_spec",
    ),
    npu_row(
        "vllm_ascend.worker.block_table:BlockTable",
        "read",
        "know how many tokens a page of a group's table has",
        "the drafter's own number is that of the first group or of a whole block",
        attributes="block_size",
    ),
    npu_row(
        f"{_RUNNER}._set_up_drafter",
        "read",
        "know when the drafter is built",
        "it has to be there when init_device returns",
        parameters="self",
    ),
    npu_row(
        f"{_RUNNER}._get_drafter",
        "read",
        "know who builds it",
        "what it builds is recognised, not replaced",
        parameters="self",
    ),
    npu_row(
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
    npu_row(
        f"{_RUNNER}.take_draft_token_ids",
        "read",
        "know that drafts go back as one list a request",
        "a depth per request needs no other way; since 0.28 there is one, drafter.dynamic_spec",
        parameters="self",
    ),
)
