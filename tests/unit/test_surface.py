# SPDX-License-Identifier: Apache-2.0
"""The table of touch points against the installed vLLM, and what a differing host is told."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from diffspec.hosts.launch import LaunchFacts
from diffspec.hosts.surface import (
    TESTED,
    TOUCH_POINTS,
    HostError,
    check_surface,
    require_surface,
)
from diffspec.hosts.touch_points import TouchPoint
from diffspec.hosts.unsupported import UNSUPPORTED, refusals

vllm = pytest.importorskip("vllm")

VLLM = [p for p in TOUCH_POINTS if p.host == "vllm"]
PROPOSE = next(p for p in VLLM if p.name == "SpecDecodeBaseProposer.propose")
POINT = TouchPoint("vllm.module:Thing.act", "bound", "worker", "", "", parameters=("self", "a"))


def host(thing: Any = None, version: str = "0.28.0") -> Any:
    """An import function for a made-up host: a ``vllm`` with a version and one module."""

    def import_module(name: str) -> Any:
        if name == "vllm":
            return SimpleNamespace(__version__=version)
        if name == "vllm.module" and thing is not None:
            return SimpleNamespace(Thing=thing)
        raise ModuleNotFoundError(f"No module named {name!r}")

    return import_module


def difference(thing: Any, point: TouchPoint = POINT) -> str:
    (found,) = check_surface([point], host(thing))
    return found.text


def test_the_table_matches_the_installed_host() -> None:
    assert vllm.__version__ in TESTED
    assert [m.text for m in check_surface(VLLM)] == []
    # Nobody has run the rows for GPUs; here they are held against the source of the same release.
    for platform in ("cpu", "cuda"):
        rows = [p for p in TOUCH_POINTS if p.platform == platform]
        assert {p.kind for p in rows} >= {"overridden", "wrapped", "called", "read"}
        require_surface(platform=platform)


def test_rows_are_complete_and_unique() -> None:
    assert len({(p.target, p.kind, p.releases) for p in TOUCH_POINTS}) == len(TOUCH_POINTS)
    for point in TOUCH_POINTS:
        assert point.what
        assert point.why
        assert re.fullmatch(r"vllm[\w.]*:\w[\w.]*", point.target)
        # A hook whose arguments we see must say which ones it has; these have none.
        without = point.name in ("load_stat_logger_plugin_factories", "get_tp_group")
        assert point.parameters or point.kind == "read" or without


@pytest.mark.parametrize("removed", PROPOSE.parameters[1:])
def test_a_removed_parameter_is_named(removed: str) -> None:
    kept = ", ".join(name for name in PROPOSE.parameters if name != removed)
    scope: dict[str, Any] = {}
    exec(f"def propose({kept}): ...", scope)

    def import_module(name: str) -> Any:
        if name == PROPOSE.module:
            return SimpleNamespace(SpecDecodeBaseProposer=SimpleNamespace(propose=scope["propose"]))
        return importlib.import_module(name)

    with pytest.raises(HostError) as caught:
        require_surface(("worker",), table=[PROPOSE], import_module=import_module)
    assert str(caught.value) == (
        "vllm-diffspec: host vLLM 0.28.0 is not compatible: SpecDecodeBaseProposer.propose lacks "
        f"parameter '{removed}' (expected {', '.join(PROPOSE.parameters)}). Tested: 0.28.0. "
        "Remove draft_context_policy or install a tested version."
    )


class Reordered:
    def act(a, self): ...  # noqa: N805


class NeedsMore:
    def act(self, a, b): ...


class TakesMore:
    def act(self, a, b=None, *rest, c=0, **more): ...


class Assigns:
    declared: int

    def act(self, a):
        self.stored: int = a


def test_differences_are_told_apart() -> None:
    assert "takes its parameters in another order" in difference(Reordered)
    assert "needs an unknown parameter 'b'" in difference(NeedsMore)
    assert difference(object()) == "Thing has no act"
    assert "vllm.module cannot be imported (ModuleNotFoundError" in difference(None)
    assert check_surface([POINT], host(TakesMore)) == []


def test_attributes_count_if_declared_or_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the host's own classes are read for assignments.
    monkeypatch.setattr(Assigns, "__module__", "vllm.made_up")
    row = replace(POINT, target="vllm.module:Thing", parameters=())
    assert check_surface([replace(row, attributes=("declared", "act"))], host(Assigns)) == []
    assert difference(Assigns, replace(row, attributes=("declared", "lost", "gone"))) == (
        "Thing lacks lost, gone"
    )


def test_an_attribute_assigned_in_a_method_of_a_host_class_is_found() -> None:
    row = replace(POINT, target="vllm.config:ParallelConfig", parameters=())
    # world_size is only declared; drafter is only ever assigned to self.
    runner = replace(row, target="vllm.v1.worker.gpu_model_runner:GPUModelRunner")
    assert check_surface([replace(runner, attributes=("drafter",))]) == []
    assert len(check_surface([replace(runner, attributes=("no_such_attribute",))])) == 1


@pytest.mark.parametrize("version", ["0.27.1", "0.29.0", "1.28.0", "dev", "unknown"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(HostError, match=r"only 0\.28\.x is supported") as caught:
        require_surface(table=[POINT], import_module=host(TakesMore, version))
    assert f"host vLLM {version} is not compatible" in str(caught.value)
    assert "Tested: 0.28.0" in str(caught.value)


@pytest.mark.parametrize("version", ["0.28.0", "0.28.1", "0.28.0+cpu", "0.28.1rc1.dev319+g762f85b"])
def test_the_release_line_is_accepted(version: str) -> None:
    require_surface(table=[POINT], import_module=host(TakesMore, version))


def test_only_rows_of_the_stage_and_platform_are_checked() -> None:
    cuda = replace(POINT, platform="cuda")
    require_surface(("config",), table=[POINT], import_module=host())
    require_surface(table=[cuda], platform="cpu", import_module=host())
    with pytest.raises(HostError, match="cannot be imported"):
        require_surface(table=[cuda], platform="cuda", import_module=host())


#: Facts that must trigger exactly the row of this id, and a part of its message.
TRIGGERS: dict[str, tuple[dict[str, Any], str]] = {
    "platform": ({"platform": "xpu"}, "device xpu"),
    "method": ({"method": "ngram"}, 'method = "ngram"'),
    "depth_per_batch_size": ({"per_batch_depths": [[1, 4, 2]]}, "[[1, 4, 2]]"),
    "probabilistic_drafts": ({"draft_sample_method": "probabilistic"}, '"probabilistic"'),
    "rejection_sampling": ({"rejection_sample_method": "synthetic"}, '"synthetic"'),
    "heterogeneous_vocabulary": ({"heterogeneous_vocab": True}, "use_heterogeneous_vocab"),
    "parallel_drafting": ({"parallel_drafting": True}, "parallel_drafting = true"),
    "padded_batches": ({"padded_batches": True}, "disable_padded_drafter_batch = false"),
    "async_scheduling": ({"async_scheduling": True}, "--async-scheduling"),
    "worker_cls": ({"worker_cls": "a.B", "our_worker_cls": "d.W"}, "--worker-cls a.B"),
    "v2_runner": ({"v2_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=1"),
    "attention_backend": (
        {"attention_backend": "FLASHINFER"},
        "attention backend FLASHINFER: DiffSpec cannot read its pages",
    ),
    "draft_tensor_parallel": (
        {"tensor_parallel_size": 1, "draft_tensor_parallel_size": 2},
        "draft_tensor_parallel_size = 2",
    ),
    "pipeline_parallel": ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"),
    "data_parallel": ({"data_parallel_size": 2}, "--data-parallel-size 2"),
    "prefill_context_parallel": (
        {"prefill_context_parallel_size": 2},
        "--prefill-context-parallel-size 2",
    ),
    "decode_context_parallel": (
        {"decode_context_parallel_size": 2},
        "--decode-context-parallel-size 2",
    ),
    "quantised_kv": ({"kv_cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype fp8_e5m2"),
    "quantised_draft_kv": ({"draft_kv_cache_dtype": "fp8"}, 'kv_cache_dtype = "fp8"'),
    "kv_connector": ({"kv_connector": "Mooncake"}, "KV connector Mooncake"),
    "lora": ({"lora": True}, "--enable-lora"),
    "prompt_embeddings": ({"prompt_embeds": True}, "--enable-prompt-embeds"),
    "sleep_mode": ({"sleep_mode": True}, "--enable-sleep-mode"),
    "multimodal": ({"multimodal": True}, "--language-model-only"),
    "vspec": ({"vspec": "HUST_VSPEC_ENABLED=1"}, "HUST_VSPEC_ENABLED=1"),
    "target_mla": ({"target_mla": True}, "the target uses multi-head latent attention"),
    "hybrid_target": ({"target_hybrid": True}, "hybrid model"),
    "draft_mla": ({"draft_mla": True}, "the draft uses multi-head latent attention"),
    "draft_layers": ({"draft_layers": 2}, "num_hidden_layers = 2"),
    "draft_hidden_size": (
        {"draft_reads_hidden_size": 96, "target_hidden_size": 128},
        "width 96 (target_hidden_size, else hidden_size) but the target's hidden_size is 128",
    ),
    "draft_vocabulary": (
        {"draft_vocab_size": 151936, "target_vocab_size": 248320},
        "vocab_size = 151936 but the target 248320",
    ),
    "draft_heads": ({"draft_heads": 4, "draft_kv_heads": 3}, "num_key_value_heads = 3"),
    "draft_sliding_window": ({"draft_sliding_window": 512}, "sliding_window = 512"),
    "draft_mrope": ({"draft_mrope": True}, "mrope_section"),
    "draft_rope": ({"draft_rope_type": "dynamic"}, 'rope_type = "dynamic"'),
    "no_full_attention": ({"target_full_attention_layers": 0}, "no full-attention layer"),
}

#: Those for one device type have tests of their own.
EVERYWHERE = [row for row in UNSUPPORTED if row.platform == "any"]

GOOD = LaunchFacts(
    platform="cpu",
    method="eagle3",
    draft_sample_method="greedy",
    worker_cls="auto",
    our_worker_cls="d.W",
    tensor_parallel_size=1,
    draft_tensor_parallel_size=1,
    pipeline_parallel_size=1,
    data_parallel_size=1,
    kv_cache_dtype="auto",
    draft_layers=1,
    draft_heads=4,
    draft_kv_heads=2,
    draft_head_size=32,
    draft_vocab_size=512,
    target_vocab_size=512,
    draft_reads_hidden_size=128,
    target_hidden_size=128,
    draft_rope_type="llama3",
    target_full_attention_layers=1,
)
ALL = ("config", "worker", "load")


def test_nothing_known_and_nothing_wrong_refuse_nothing() -> None:
    assert refusals(LaunchFacts(), ALL) == []
    assert refusals(GOOD, ALL) == []


@pytest.mark.parametrize("row", EVERYWHERE, ids=lambda row: row.id)
def test_each_row_refuses_its_case_and_says_what_to_do(row: Any) -> None:
    facts, part = TRIGGERS[row.id]
    (message,) = refusals(replace(GOOD, **facts), ALL)
    assert part in message
    assert re.search(r"; (remove|use|set|unset|serve|disable|correct) |[:;] use ", message), message
    assert refusals(replace(GOOD, **facts), (row.where,)) == [message]


def test_rows_have_triggers_and_unique_ids() -> None:
    assert [row.id for row in EVERYWHERE] == list(TRIGGERS)
    assert len({row.id for row in UNSUPPORTED}) == len(UNSUPPORTED)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("backend", [None, "CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN"])
def test_devices_and_backends_that_are_accepted(platform: str, backend: str | None) -> None:
    assert refusals(replace(GOOD, platform=platform, attention_backend=backend), ALL) == []


@pytest.mark.parametrize("size", [33, 32.5])
def test_a_head_that_cannot_be_rotated_is_refused(size: float) -> None:
    assert f"head size of {size}" in refusals(replace(GOOD, draft_head_size=size))[0]
