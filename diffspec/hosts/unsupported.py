# SPDX-License-Identifier: Apache-2.0
"""The one list of what DiffSpec refuses, quoted by the documentation and by ``diffspec doctor``.

A row refuses because the case is wrong with our design, or merely because nobody has tested it;
its text says which. No vLLM import: rows judge a :class:`LaunchFacts`, which the host side fills.
"""

from __future__ import annotations

from collections.abc import Iterable

from diffspec.hosts.ascend_unsupported import ASCEND_UNSUPPORTED
from diffspec.hosts.launch import LaunchFacts, Unsupported, Where

#: Device types that this release drafts on.
PLATFORMS = ("cpu", "cuda", "npu")

#: vLLM's names of the attention backends whose pages and metadata were read for DiffSpec.
READABLE_BACKENDS = ("CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN")

#: Rows that say "not tested on this host" of vLLM's own hosts, name their attention backends or
#: want the batches that only they have; on an NPU they are not judged.
NOT_ON_ASCEND = frozenset({"hybrid_target", "attention_backend", "padded_batches"})

_MODEL_TYPES = ("bfloat16", "float16", "float32")
_PLAIN_ROPE = ("default", "llama3", "linear", "yarn")


def _above_one(size: int | None) -> bool:
    return size is not None and size > 1


def _differ(left: object, right: object) -> bool:
    return left is not None and right is not None and left != right


def _other_type(dtype: str | None, f: LaunchFacts) -> bool:
    if dtype in (None, "auto"):
        return False
    if f.model_dtype is None:
        return dtype not in _MODEL_TYPES  # one of these may be the model's own
    return dtype != f.model_dtype


def _heads_do_not_divide(f: LaunchFacts) -> bool:
    heads, kv_heads, size = f.draft_heads, f.draft_kv_heads, f.draft_head_size
    if heads is not None and kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        return True
    # RoPE turns pairs, so a head of odd or fractional width cannot be rotated.
    return size is not None and size % 2 != 0


_EVERYWHERE: tuple[Unsupported, ...] = (
    Unsupported(
        "platform",
        "a device other than a CPU, a CUDA GPU or, with vLLM-Ascend, an NPU",
        "device {f.platform}: this release drafts on CPUs, on CUDA and on Ascend NPUs only; use "
        "one of these, or remove draft_context_policy",
        "config",
        lambda f: f.platform not in (None, *PLATFORMS),
    ),
    Unsupported(
        "method",
        "a speculative method other than eagle3",
        'method = "{f.method}": DiffSpec drafts with an EAGLE-3 head; set method to "eagle3"',
        "config",
        lambda f: _differ(f.method, "eagle3"),
    ),
    Unsupported(
        "depth_per_batch_size",
        "num_speculative_tokens_per_batch_size",
        "num_speculative_tokens_per_batch_size = {f.per_batch_depths}: the host would change the "
        "depth on its own; remove it",
        "config",
        lambda f: f.per_batch_depths is not None,
    ),
    Unsupported(
        "probabilistic_drafts",
        "probabilistic drafts",
        'draft_sample_method = "{f.draft_sample_method}": DiffSpec drafts greedily and gives no '
        'draft probabilities; set "greedy" or remove it',
        "config",
        lambda f: _differ(f.draft_sample_method, "greedy"),
    ),
    Unsupported(
        "rejection_sampling",
        "a rejection sampler other than the standard one",
        'rejection_sample_method = "{f.rejection_sample_method}": its output is not the target\'s, '
        "or not tested to be; remove it",
        "config",
        lambda f: f.rejection_sample_method not in (None, "standard"),
    ),
    Unsupported(
        "heterogeneous_vocabulary",
        "heterogeneous vocabularies",
        "use_heterogeneous_vocab = true: the draft must have the target's vocabulary; remove it",
        "config",
        lambda f: f.heterogeneous_vocab,
    ),
    Unsupported(
        "parallel_drafting",
        "parallel drafting",
        "parallel_drafting = true: DiffSpec drafts one token after the other; remove it",
        "config",
        lambda f: f.parallel_drafting,
    ),
    Unsupported(
        "padded_batches",
        "explicitly padded drafter batches",
        "disable_padded_drafter_batch = false: DiffSpec needs unpadded batches for exact feedback; "
        "remove it",
        "config",
        lambda f: f.padded_batches,
    ),
    Unsupported(
        "async_scheduling",
        "asynchronous scheduling asked for explicitly",
        "--async-scheduling: drafts of differing length need the synchronous scheduler; remove it",
        "config",
        lambda f: f.async_scheduling,
    ),
    Unsupported(
        "worker_cls",
        "another worker class",
        "--worker-cls {f.worker_cls}: DiffSpec needs its own worker, {f.our_worker_cls}; remove it",
        "config",
        lambda f: f.worker_cls not in (None, "auto", f.our_worker_cls),
    ),
    Unsupported(
        "v2_runner",
        "the V2 model runner",
        "VLLM_USE_V2_MODEL_RUNNER=1: the V2 model runner has no place for DiffSpec's proposer; "
        "unset it",
        "config",
        lambda f: f.v2_runner,
    ),
    Unsupported(
        "attention_backend",
        "an attention backend other than " + ", ".join(READABLE_BACKENDS) + " (one that vLLM "
        "itself chooses: when the models are loaded)",
        "attention backend {f.attention_backend}: DiffSpec cannot read its pages and queries; use "
        "--attention-backend FLASH_ATTN or TRITON_ATTN",
        "config",
        lambda f: f.attention_backend not in (None, *READABLE_BACKENDS),
    ),
    Unsupported(
        "draft_tensor_parallel",
        "a draft tensor-parallel size other than the target's",
        "draft_tensor_parallel_size = {f.draft_tensor_parallel_size}: the draft runs at the "
        "target's {f.tensor_parallel_size} whatever is asked; remove it or set it to that",
        "config",
        lambda f: _differ(f.draft_tensor_parallel_size, f.tensor_parallel_size),
    ),
    Unsupported(
        "pipeline_parallel",
        "pipeline parallelism",
        "--pipeline-parallel-size {f.pipeline_parallel_size}: the draft needs queries of the last "
        "stage and tokens of the first; use 1",
        "config",
        lambda f: _above_one(f.pipeline_parallel_size),
    ),
    Unsupported(
        "data_parallel",
        "data parallelism",
        "--data-parallel-size {f.data_parallel_size}: ranks would have to draft in step; use 1",
        "config",
        lambda f: _above_one(f.data_parallel_size),
    ),
    Unsupported(
        "prefill_context_parallel",
        "prefill context parallelism",
        "--prefill-context-parallel-size {f.prefill_context_parallel_size}: a rank would see only "
        "part of the keys; use 1",
        "config",
        lambda f: _above_one(f.prefill_context_parallel_size),
    ),
    Unsupported(
        "decode_context_parallel",
        "decode context parallelism",
        "--decode-context-parallel-size {f.decode_context_parallel_size}: a rank would see only "
        "part of the keys; use 1",
        "config",
        lambda f: _above_one(f.decode_context_parallel_size),
    ),
    Unsupported(
        "quantised_kv",
        "a KV cache of another type than the model (quantised or not)",
        "--kv-cache-dtype {f.kv_cache_dtype}: keys are scored and rotated as the model computes "
        "them; use auto",
        "config",
        lambda f: _other_type(f.kv_cache_dtype, f),
    ),
    Unsupported(
        "quantised_draft_kv",
        "a KV cache of the draft of another type than the model",
        'kv_cache_dtype = "{f.draft_kv_cache_dtype}": the draft\'s keys are stored unrotated in '
        "the model's own type; remove it",
        "config",
        lambda f: _other_type(f.draft_kv_cache_dtype, f),
    ),
    Unsupported(
        "kv_connector",
        "KV connectors",
        "KV connector {f.kv_connector}: transferred pages would lack the draft's keys; remove "
        "--kv-transfer-config and --kv-offloading-size",
        "config",
        lambda f: f.kv_connector is not None,
    ),
    Unsupported(
        "lora",
        "LoRA on the draft or beside it",
        "--enable-lora: adapters together with DiffSpec are not tested; remove it",
        "config",
        lambda f: f.lora,
    ),
    Unsupported(
        "prompt_embeddings",
        "prompt embeddings",
        "--enable-prompt-embeds: the draft needs token ids; remove it",
        "config",
        lambda f: f.prompt_embeds,
    ),
    Unsupported(
        "sleep_mode",
        "sleep mode",
        "--enable-sleep-mode: waking up would not bring DiffSpec's buffers back; remove it",
        "config",
        lambda f: f.sleep_mode,
    ),
    Unsupported(
        "multimodal",
        "multimodal inputs",
        "multimodal target: the draft needs token ids; serve it with --language-model-only",
        "config",
        lambda f: f.multimodal,
    ),
    Unsupported(
        "vspec",
        "vSpec in the same process",
        "vSpec is active ({f.vspec}): vSpec and DiffSpec patch the same drafter; disable "
        "one of the two",
        "config",
        lambda f: f.vspec is not None,
    ),
    Unsupported(
        "target_mla",
        "an MLA target",
        "the target uses multi-head latent attention: its pages hold no keys to score; use another "
        "target",
        "config",
        lambda f: f.target_mla,
    ),
    Unsupported(
        "hybrid_target",
        "hybrid (recurrent) targets",
        "the target is a hybrid model (linear attention or Mamba layers): not tested yet on this "
        "host; remove draft_context_policy",
        "config",
        lambda f: f.target_hybrid,
    ),
    Unsupported(
        "draft_mla",
        "an MLA draft",
        "the draft uses multi-head latent attention; use a Llama-style EAGLE-3 draft",
        "config",
        lambda f: f.draft_mla,
    ),
    Unsupported(
        "draft_layers",
        "a draft of more than one layer",
        "the draft has num_hidden_layers = {f.draft_layers}; use a one-layer EAGLE-3 draft",
        "config",
        lambda f: _differ(f.draft_layers, 1),
    ),
    Unsupported(
        "draft_hidden_size",
        "a draft made for another hidden size",
        "the draft reads features of width {f.draft_reads_hidden_size} (target_hidden_size, else "
        "hidden_size) but the target's hidden_size is {f.target_hidden_size}; use this target's "
        "draft",
        "config",
        lambda f: _differ(f.draft_reads_hidden_size, f.target_hidden_size),
    ),
    Unsupported(
        "draft_vocabulary",
        "a draft with another vocabulary",
        "the draft has vocab_size = {f.draft_vocab_size} but the target {f.target_vocab_size}; use "
        "this target's draft",
        "config",
        lambda f: _differ(f.draft_vocab_size, f.target_vocab_size),
    ),
    Unsupported(
        "draft_heads",
        "draft head counts or sizes that do not divide",
        "the draft has num_attention_heads = {f.draft_heads}, num_key_value_heads = "
        "{f.draft_kv_heads} and a head size of {f.draft_head_size}: the second must divide the "
        "first and the size be even; correct the draft's config.json",
        "config",
        _heads_do_not_divide,
    ),
    Unsupported(
        "draft_sliding_window",
        "a draft with a sliding-window layer",
        "the draft has sliding_window = {f.draft_sliding_window}: DiffSpec chooses what the draft "
        "attends to; use a draft with full attention",
        "config",
        lambda f: f.draft_sliding_window is not None,
    ),
    Unsupported(
        "draft_mrope",
        "M-RoPE in the draft",
        "the draft uses M-RoPE (mrope_section): its keys cannot be placed at local positions; use "
        "a draft with plain RoPE",
        "config",
        lambda f: f.draft_mrope,
    ),
    Unsupported(
        "draft_rope",
        "a draft whose RoPE depends on more than the position",
        'the draft has rope_type = "{f.draft_rope_type}": only '
        + ", ".join(_PLAIN_ROPE)
        + " are supported; use another draft",
        "config",
        lambda f: f.draft_rope_type is not None and f.draft_rope_type not in _PLAIN_ROPE,
    ),
    Unsupported(
        "no_full_attention",
        "a target without a full-attention layer",
        "the target has no full-attention layer whose queries could score chunks; use another "
        "target",
        "load",
        lambda f: f.target_full_attention_layers == 0,
    ),
)

UNSUPPORTED: tuple[Unsupported, ...] = (*_EVERYWHERE, *ASCEND_UNSUPPORTED)


def applying(facts: LaunchFacts, where: Iterable[Where] = ("config", "load")) -> list[Unsupported]:
    """Every row judged at ``where`` that applies to ``facts``, in table order."""
    stages = tuple(where)
    left_out = NOT_ON_ASCEND if facts.platform == "npu" else ()
    return [
        row
        for row in UNSUPPORTED
        if row.where in stages and row.id not in left_out and row.applies(facts)
    ]


def refusals(facts: LaunchFacts, where: Iterable[Where] = ("config",)) -> list[str]:
    """The message of every row judged at ``where`` that applies to ``facts``, in table order."""
    return [row.message.format(f=facts) for row in applying(facts, where)]
