# SPDX-License-Identifier: Apache-2.0
"""Attaching to the real drafter class, from the worker that goes before the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm_ascend.attention import attention_v1
from vllm_ascend.ops.rotary_embedding import AscendRotaryEmbedding
from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
from vllm_ascend.worker.worker import NPUWorker

from diffspec.compact_kv import kernels
from diffspec.compact_kv.rope import LocalRope
from diffspec.hosts.ascend.fused_attention import OPERATION
from diffspec.hosts.ascend.session import AscendSession
from diffspec.hosts.surface import HostError
from diffspec.hosts.vllm import worker as host_worker
from diffspec.hosts.vllm.facts import WORKERS
from diffspec.settings import DiffSpecSettings
from tests.ascend.inside.padded_host import ON, make_drafter, make_session
from tests.unit.test_rope import table

DEPTH, DIM = 3, 16


def test_a_session_is_bound_on_the_instance_and_let_go() -> None:
    session = make_session(DEPTH)
    drafter = session.drafter
    assert type(drafter) is AscendEagleProposer
    assert session.runner.effective_drafter_max_model_len == 1000 + DEPTH + 1
    for name in AscendSession.BOUND:
        assert getattr(drafter, name).__self__ is session
        assert getattr(AscendEagleProposer, name).__module__.startswith("vllm_ascend.")
    with pytest.raises(HostError, match="attached to this drafter already"):
        AscendSession(drafter, drafter.runner, session.settings, memory=0)
    session.detach()
    for name in AscendSession.BOUND:
        assert name not in vars(drafter)
    again = DiffSpecSettings.parse(ON, num_speculative_tokens=DEPTH)
    assert AscendSession(drafter, drafter.runner, again, memory=0).depth == DEPTH


def test_the_worker_goes_before_the_hosts() -> None:
    cls = resolve_obj_by_qualname(WORKERS["npu"])
    assert issubclass(cls, NPUWorker)
    for name in (
        "init_device", "initialize_from_config", "execute_model", "compile_or_warm_up_model",
    ):  # fmt: skip
        assert getattr(cls, name).__module__ == "diffspec.hosts.vllm.worker"
        assert name in vars(NPUWorker), "the host's own is called by ours"
    worker = object.__new__(cls)
    worker.requested_memory = 7.5 * 2**30
    for given, expected in ((None, int(7.5 * 2**30)), (2 << 30, 2 << 30)):
        worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=given)
        assert worker.memory_given() == expected


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker whose device and drafter exist; what its flags came out as is not judged here."""
    monkeypatch.setattr(host_worker, "require_surface", lambda *_, **__: None)
    monkeypatch.setattr(host_worker, "worker_facts", lambda _: None)
    monkeypatch.setattr(host_worker, "refusals", lambda *_: [])
    monkeypatch.setattr(kernels, "_ATTENTION", {})
    alone = SimpleNamespace(rank_in_group=0, world_size=1)
    monkeypatch.setattr("vllm.distributed.parallel_state.get_tp_group", lambda: alone)
    worker = object.__new__(resolve_obj_by_qualname(WORKERS["npu"]))
    drafter = make_drafter(DEPTH)
    settings = DiffSpecSettings.parse(ON, num_speculative_tokens=DEPTH)
    worker.vllm_config = SimpleNamespace(
        speculative_config=SimpleNamespace(diffspec=settings.to_payload())
    )
    runner = object.__new__(NPUModelRunner)
    vars(runner).update(vars(drafter.runner), drafter=drafter)
    drafter.runner = worker.model_runner = runner
    worker.device = SimpleNamespace(type="npu")
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=1 << 30)
    return worker


def test_the_worker_attaches_and_offers_the_devices_attention(worker: Any) -> None:
    session = worker.attach()
    assert isinstance(session, AscendSession)
    assert session.drafter is worker.model_runner.drafter
    assert session.memory == 1 << 30
    npu = SimpleNamespace(type="npu")
    assert str(kernels.attention_for(npu)) == OPERATION
    assert str(kernels.kernels_for(npu)) == "torch (device npu)"
    assert str(kernels.attention_for(torch.device("cpu"))) == "torch (device cpu)"


def test_the_worker_attaches_to_no_other_drafter(worker: Any) -> None:
    worker.model_runner.drafter = SimpleNamespace()
    with pytest.raises(HostError, match="with AscendEagleProposer, not to NPUModelRunner with"):
        worker.attach()


@pytest.mark.parametrize("mode", ["FULL"])
def test_graphs_of_steps_of_any_shape_are_refused(mode: str) -> None:
    session = make_session(DEPTH, mode=CUDAGraphMode[mode])
    with pytest.raises(HostError, match=f"cudagraph_mode {mode} captures steps of any shape"):
        session.drafter.load_model(None)


def test_unpadded_batches_are_refused() -> None:
    session = make_session(DEPTH)
    session.drafter.speculative_config.disable_padded_drafter_batch = True
    with pytest.raises(HostError, match="reads padded batches"):
        session.drafter.load_model(None)


def test_other_attention_classes_are_refused() -> None:
    session = make_session(DEPTH)
    plain, other = (
        SimpleNamespace(impl=object.__new__(cls))
        for cls in (
            attention_v1.AscendAttentionBackendImpl,
            attention_v1.AscendC8AttentionBackendImpl,
        )
    )
    session.require_readable(plain)
    with pytest.raises(HostError, match="class AscendC8AttentionBackendImpl"):
        session.require_readable(other)


@pytest.mark.parametrize(("block", "pages"), [(128, 128), (1536, 128), (100, 100)])
def test_pages_are_as_large_as_block_tables_say(block: int, pages: int) -> None:
    session = make_session(DEPTH)
    session.drafter.vllm_config.cache_config = SimpleNamespace(block_size=block)
    layer = SimpleNamespace(attn_backend=attention_v1.AscendAttentionBackend)
    assert session.page_tokens(layer) == pages


def test_nothing_is_measured_before_serving() -> None:
    session = make_session(DEPTH)
    session.sweep()  # the runner here has no dummy run to call


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [DIM, DIM // 2])
def test_rotation_is_compared_with_vllms_own_arithmetic(neox: bool, rotary_dim: int) -> None:
    assert AscendRotaryEmbedding.forward_static is RotaryEmbedding.forward_static
    cos_sin = table(rotary_dim)
    rotary = SimpleNamespace(
        head_size=DIM, rotary_dim=rotary_dim, cos_sin_cache=cos_sin, is_neox_style=neox
    )
    k = torch.randn(3, 2, DIM, generator=torch.Generator().manual_seed(0))
    at = torch.tensor([0, 5, 19])
    theirs = make_session(DEPTH).rotation()(rotary, at, k.flatten(1)).view_as(k)
    ours = LocalRope(cos_sin, neox_style=neox, dtype=torch.float32).rotate(k, at)
    torch.testing.assert_close(ours, theirs)
