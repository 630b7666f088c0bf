# SPDX-License-Identifier: Apache-2.0
"""Local rotary positions against rotation of complex numbers in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffspec.compact_kv.rope import LocalRope
from tests.unit.naive import rotate

pytestmark = pytest.mark.usefixtures("one_thread")

POSITIONS, BASE = 50, 10000.0


def table(rotary_dim: int) -> torch.Tensor:
    angles = np.outer(
        np.arange(POSITIONS), BASE ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    )
    return torch.from_numpy(np.concatenate((np.cos(angles), np.sin(angles)), axis=1))


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [16, 8, 2])
def test_rotation(neox: bool, rotary_dim: int) -> None:
    rope = LocalRope(table(rotary_dim), neox_style=neox, dtype=torch.float32)
    x = torch.randn((7, 3, 16), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 49, 3, 3, 17, 1, 30])
    wanted = np.stack(
        [
            [rotate(head, int(p), rotary_dim, BASE, neox) for head in row.double().numpy()]
            for row, p in zip(x, positions, strict=True)
        ]
    )
    np.testing.assert_allclose(rope.rotate(x, positions).numpy(), wanted, atol=2e-6)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [16, 8])
def test_prefix_is_rotation_at_0_to_n(neox: bool, rotary_dim: int) -> None:
    rope = LocalRope(table(rotary_dim), neox_style=neox, dtype=torch.float32)
    x = torch.randn((2, 20, 3, 16), generator=torch.Generator().manual_seed(0))
    rotated = torch.full((2, 3, 20, 16), torch.nan)
    rope.rotate_prefix(x, out=rotated)
    for part, whole in zip(x, rotated, strict=True):
        # Not to the bit: the one adds and multiplies in one rounding, the other in two.
        torch.testing.assert_close(rope.rotate(part, torch.arange(20)).transpose(0, 1), whole)


def test_the_input_stays_as_it_was() -> None:
    rope = LocalRope(table(16), neox_style=True, dtype=torch.float32)
    x = torch.randn((4, 1, 16))
    before = x.clone()
    rope.rotate(x, torch.arange(4))
    rope.rotate_prefix(x.unsqueeze(0), out=torch.empty((1, 1, 4, 16)))
    assert torch.equal(x, before)


def test_table_and_result_have_the_asked_dtype() -> None:
    rope = LocalRope(table(16), neox_style=True, dtype=torch.bfloat16)
    assert (rope.positions, rope.rotary_dim) == (POSITIONS, 16)
    x = torch.randn((4, 1, 16)).to(torch.bfloat16)
    assert rope.rotate(x, torch.arange(4)).dtype == torch.bfloat16


def test_an_odd_table_is_refused() -> None:
    with pytest.raises(ValueError, match="odd"):
        LocalRope(torch.zeros(4, 7), neox_style=True, dtype=torch.float32)
