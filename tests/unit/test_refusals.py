# SPDX-License-Identifier: Apache-2.0
"""Launches that DiffSpec refuses, each by name, judged on vLLM's real objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffspec.hosts.vllm.facts import vspec_marker
from tests.unit.conftest import ON, Launch

pytest.importorskip("vllm")

pytestmark = pytest.mark.usefixtures("launch_environment")


FLAGS: list[tuple[dict[str, Any], str]] = [
    ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"),
    ({"data_parallel_size": 2}, "--data-parallel-size 2"),
    ({"prefill_context_parallel_size": 2}, "--prefill-context-parallel-size 2"),
    (
        {"tensor_parallel_size": 4, "decode_context_parallel_size": 2},
        "--decode-context-parallel-size 2",
    ),
    ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8"),
    ({"kv_cache_dtype": "bfloat16"}, "--kv-cache-dtype bfloat16"),
    ({"enable_lora": True}, "--enable-lora"),
    ({"enable_prompt_embeds": True}, "--enable-prompt-embeds"),
    ({"async_scheduling": True}, "--async-scheduling"),
    ({"worker_cls": "some.other.Worker"}, "--worker-cls some.other.Worker: DiffSpec needs"),
    ({"kv_offloading_size": 1.0}, "KV connector of --kv-offloading-size"),
]
SPEC: list[tuple[dict[str, Any], str]] = [
    ({"method": "eagle"}, 'method = "eagle"'),
    ({"method": "draft_model"}, 'method = "draft_model"'),
    ({"num_speculative_tokens_per_batch_size": [[1, 4, 2]]}, "per_batch_size = [[1, 4, 2]]"),
    ({"draft_sample_method": "probabilistic"}, 'draft_sample_method = "probabilistic"'),
    (
        {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [0.5, 0.4, 0.3],
        },
        'rejection_sample_method = "synthetic"',
    ),
    ({"use_heterogeneous_vocab": True}, "use_heterogeneous_vocab = true"),
    ({"parallel_drafting": True}, "parallel_drafting = true"),
    ({"parallel-drafting": True}, "parallel_drafting = true"),
    ({"disable_padded_drafter_batch": False}, "disable_padded_drafter_batch = false"),
    ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size = 2"),
    ({"kv_cache_dtype": "fp8"}, 'kv_cache_dtype = "fp8"'),
    ({"model": "/no/such/draft"}, 'model = "/no/such/draft": no such folder'),
    ({"model": "./draft"}, 'model = "./draft": no such folder'),
    ({"model": "~/draft"}, "~ is not expanded inside JSON"),
    ({"diffspec_verification_mode": "tree"}, "use auto or linear"),
    ({"diffspec_long_context_depth": 4}, "at most num_speculative_tokens (3)"),
]
DRAFTS: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": 2}, "num_hidden_layers = 2"),
    ({"hidden_size": 64}, "width 64"),
    ({"target_hidden_size": 256}, "width 256"),
    ({"vocab_size": 1024}, "vocab_size = 1024 but the target 512"),
    ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads = 3"),
    ({"layer_types": ["sliding_attention"], "sliding_window": 64}, "sliding_window = 64"),
    (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        'rope_type = "dynamic"',
    ),
    (
        {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}},
        "M-RoPE (mrope_section)",
    ),
]


@pytest.mark.parametrize(("flags", "part"), FLAGS, ids=lambda v: v if isinstance(v, str) else "")
def test_unsupported_flags(refused: Callable[..., str], flags: dict[str, Any], part: str) -> None:
    assert part in refused(**flags)


@pytest.mark.parametrize(("spec", "part"), SPEC, ids=lambda v: v if isinstance(v, str) else "")
def test_unsupported_speculative_keys(
    refused: Callable[..., str], spec: dict[str, Any], part: str
) -> None:
    text = refused(spec)
    assert part in text
    assert "(1 problem)" in text


@pytest.mark.parametrize(("changes", "part"), DRAFTS, ids=lambda v: v if isinstance(v, str) else "")
def test_drafts_that_do_not_fit(
    refused: Callable[..., str],
    altered_draft: Callable[..., str],
    changes: dict[str, Any],
    part: str,
) -> None:
    text = refused({"model": altered_draft(**changes)})
    assert part in text
    assert "(1 problem)" in text


def test_a_draft_of_another_width_made_for_this_target_is_accepted(
    launch: Launch, altered_draft: Callable[..., str]
) -> None:
    model = altered_draft(hidden_size=64, target_hidden_size=128)
    assert launch(ON | {"model": model}).speculative_config.diffspec["policy"] == "diffspec"


def test_a_folder_without_a_model_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "the folder has no config.json" in refused({"model": str(tmp_path)})


def test_environment_conflicts(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setenv("HUST_VSPEC_ENABLED", "1")
    text = refused()
    assert "VLLM_USE_V2_MODEL_RUNNER=1" in text
    assert "vSpec is active (HUST_VSPEC_ENABLED=1): vSpec and DiffSpec patch the same" in text


def test_vspec_is_recognised_by_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class Host:
        def propose(self) -> None: ...

    assert vspec_marker(Host) is None
    monkeypatch.setenv("HUST_VSPEC_ENABLED", " Off")
    monkeypatch.setenv("HUST_VSPEC_MODEL_DIR", "models")  # for its command line alone
    assert vspec_marker(Host) is None
    monkeypatch.setattr(Host.propose, "__module__", "vllm_hust_vspec.patches")
    assert vspec_marker(Host) == "Host.propose is patched"
    monkeypatch.setattr(Host.propose, "__module__", "host")
    monkeypatch.setattr(Host, "_vllm_hust_vspec_eagle_patched", True, raising=False)
    assert vspec_marker(Host) == "Host._vllm_hust_vspec_eagle_patched is patched"
    monkeypatch.setenv("HUST_SPECSLO_ENABLED", "1")  # an older name; the present one says off
    assert vspec_marker(Host) == "Host._vllm_hust_vspec_eagle_patched is patched"
    monkeypatch.delenv("HUST_VSPEC_ENABLED")
    assert vspec_marker(Host) == "HUST_SPECSLO_ENABLED=1"
    monkeypatch.setenv("VLLMHUST_EXT_ENABLED_BUNDLES", "org.vllm-hust.vspec")
    assert "org.vllm-hust.vspec" in str(vspec_marker(Host))


def test_a_kv_connector_is_refused_by_name(refused: Callable[..., str]) -> None:
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both")
    assert "KV connector ExampleConnector" in refused(kv_transfer_config=transfer)


def test_problems_of_all_kinds_come_in_one_message(refused: Callable[..., str]) -> None:
    text = refused(
        {
            "diffspec_chunk_size": 48,
            "diffspec_bugdet": 1,
            "model": "/no/such/draft",
            "draft_sample_method": "probabilistic",
        },
        pipeline_parallel_size=2,
        enable_lora=True,
    )
    assert "(6 problems)" in text
    for part in (
        "diffspec_chunk_size = 48",
        "did you mean diffspec_token_budget?",
        "/no/such/draft",
        "probabilistic",
        "--pipeline-parallel-size 2",
        "--enable-lora",
    ):
        assert part in text


def test_draft_problems_come_in_one_message(
    refused: Callable[..., str], altered_draft: Callable[..., str]
) -> None:
    model = altered_draft(num_hidden_layers=2, vocab_size=1024, max_position_embeddings=512)
    text = refused({"model": model, "diffspec_token_budget": 1024})
    assert "(3 problems)" in text
    for part in ("num_hidden_layers = 2", "vocab_size = 1024", "trained window is 512"):
        assert part in text
