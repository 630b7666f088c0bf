# SPDX-License-Identifier: Apache-2.0
"""The fixed depth policy."""

from __future__ import annotations

import numpy as np

from diffspec.adaptive_depth.policy import DepthPolicy, FixedDepth


def test_fixed_depth_is_the_same_for_all_whatever_happens() -> None:
    policy: DepthPolicy = FixedDepth(3)
    slots, lengths = np.array([4, 1, 2]), np.array([10, 100_000, 5])
    room = np.array([7, 7, 2])
    assert policy.plan(slots, lengths, room).depths.tolist() == [3, 3, 2]
    policy.observe(slots, np.array([3, 3, 2]), np.array([0, 0, 0]), np.full(3, -1))
    assert policy.gate(slots, np.array([3, 3, 2])) is None
    policy.forget(4)
    plan = policy.plan(slots[:1], lengths[:1], room[:1])
    assert plan.depths.tolist() == [3]
    assert not plan.shadows.any()
    assert policy.plan(slots[:0], lengths[:0], room[:0]).depths.shape == (0,)
