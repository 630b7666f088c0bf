# SPDX-License-Identifier: Apache-2.0
"""Key pages of the real attention implementation, in both layouts.

The device's write operation is not here; a plain one does what its documentation says: row i of
``key`` goes to slot i, in pages ``[tokens, heads, head_dim]`` or ``[heads, tokens, head_dim]``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionType
from vllm_ascend.attention.attention_v1 import AscendAttentionBackend, AscendAttentionBackendImpl
from vllm_ascend.device import device_op

from diffspec.hosts.ascend import pages as reader
from diffspec.hosts.surface import HostError

BLOCKS, TOKENS, HEADS, DIM = 5, 16, 2, 24


def write(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    cache_mode: str,
    scatter_mode: str = "",
) -> None:
    """What the device's operation is documented to do."""
    assert slot_mapping.dtype == torch.int32
    assert cache_mode == "Norm"
    for new, cache in ((key, key_cache), (value, value_cache)):
        for row, slot in zip(new, slot_mapping.tolist(), strict=True):
            block, offset = divmod(slot, TOKENS)
            if scatter_mode == "NHSD":
                cache[block, :, offset] = row
            else:
                cache[block, offset] = row


@pytest.fixture(params=["BSND", "BNSD"])
def layer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An attention layer of the real implementation, with a cache of the shape the host gives."""
    layout = "HND" if request.param == "BNSD" else None
    monkeypatch.setattr("vllm.envs.VLLM_KV_CACHE_LAYOUT", layout, raising=False)
    monkeypatch.setattr(device_op.torch_npu, "npu_scatter_pa_kv_cache", write)
    ops = SimpleNamespace(npu_scatter_pa_kv_cache=write)
    monkeypatch.setattr(torch.ops, "_C_ascend", ops, raising=False)
    impl = object.__new__(AscendAttentionBackendImpl)
    impl.attn_type = AttentionType.DECODER
    impl.use_bnsd_kv_cache = layout is not None
    impl.key_cache = impl.value_cache = None
    shape = AscendAttentionBackend.get_kv_cache_shape(BLOCKS, TOKENS, HEADS, DIM)
    k, v = torch.zeros(shape, dtype=torch.bfloat16).unbind(0)
    return SimpleNamespace(impl=impl, kv_cache=(k, v), num_kv_heads=HEADS, head_size=DIM)


def test_keys_are_read_as_the_host_writes_them(layer: Any) -> None:
    pages = reader.read_key_pages(layer, TOKENS)
    impl = layer.impl
    assert impl.key_cache is None, "the host has still to see its own cache first"
    assert not any(part.any() for part in layer.kv_cache), "real pages are left alone"
    generator = torch.Generator().manual_seed(0)
    keys, values = (
        torch.randn(BLOCKS * TOKENS, HEADS, DIM, generator=generator).bfloat16() for _ in range(2)
    )
    slots = torch.randperm(BLOCKS * TOKENS, generator=generator)
    impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, slots.int())
    expected = torch.empty_like(keys)
    expected[slots] = keys
    expected = expected.view(BLOCKS, TOKENS, HEADS, DIM).permute(0, 2, 3, 1)
    blocks = torch.tensor([3, 0, 3, 4])
    assert torch.equal(pages.read(blocks), expected[blocks])
    out = torch.zeros(4, HEADS, DIM, TOKENS, dtype=torch.bfloat16)
    assert torch.equal(pages.read(blocks, out), expected[blocks])
    assert torch.equal(out, expected[blocks])
    assert pages.view is None, "no operation gets all pages as one tensor that is not dense"
    assert pages.in_place(0, 2) is None


def test_a_cache_in_a_list_of_its_own(layer: Any) -> None:
    layer.kv_cache = [layer.kv_cache]
    assert reader.read_key_pages(layer, TOKENS).page_shape == (HEADS, DIM, TOKENS)


def test_what_the_implementation_remembers_stays(layer: Any) -> None:
    layer.impl.key_cache, layer.impl.value_cache = layer.kv_cache
    reader.read_key_pages(layer, TOKENS)
    assert layer.impl.key_cache is layer.kv_cache[0]
    assert layer.impl.value_cache is layer.kv_cache[1]
    assert not any(part.any() for part in layer.kv_cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache": torch.zeros(2, BLOCKS, TOKENS, HEADS, DIM)}, "a KV cache of Tensor"),
        ({"kv_cache": (torch.zeros(BLOCKS, TOKENS, 3, DIM),) * 2}, "not 16 tokens"),
        ({"kv_cache": (torch.zeros(2, 2), torch.zeros(2, 3))}, "are not alike"),
        ({"num_kv_heads": 1}, "not 16 tokens"),
    ],
)
def test_other_caches_are_refused(layer: Any, change: dict[str, Any], message: str) -> None:
    vars(layer).update(change)
    with pytest.raises(HostError, match=message):
        reader.read_key_pages(layer, TOKENS)


def test_a_write_that_writes_nothing_is_refused(
    layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*args: Any, **kwargs: Any) -> None: ...

    monkeypatch.setattr(device_op.torch_npu, "npu_scatter_pa_kv_cache", nothing)
    monkeypatch.setattr(torch.ops._C_ascend, "npu_scatter_pa_kv_cache", nothing)
    with pytest.raises(HostError, match="0 of 768 coded key elements found"):
        reader.read_key_pages(layer, TOKENS)
    assert layer.impl.key_cache is None


def test_draft_rows_in_either_layout(layer: Any) -> None:
    rows = reader.draft_pages(layer.kv_cache, block_size=TOKENS, heads=HEADS, head_dim=DIM)
    new = torch.randn(3, 2, HEADS, DIM).bfloat16()
    slots = torch.tensor([70, 5, 16])
    rows.write(slots, new[:, 0], new[:, 1])
    out = torch.empty(8 * 2 * HEADS * DIM, dtype=torch.bfloat16)
    assert torch.equal(rows.gather(slots.flip(0), out), new.flip(0))
    with pytest.raises(ValueError, match="not of one K and one V tensor"):
        reader.draft_pages(layer.kv_cache[0], block_size=TOKENS, heads=HEADS, head_dim=DIM)
