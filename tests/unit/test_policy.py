# SPDX-License-Identifier: Apache-2.0
"""The fixed depth policy."""

from __future__ import annotations

import numpy as np

from diffspec.adaptive_depth.policy import DepthPolicy, FixedDepth


def test_fixed_depth_stays_fixed() -> None:
    policy: DepthPolicy = FixedDepth(3)
    slots, lengths = np.array([4, 0, 2]), np.array([10, 100_000, 1])
    assert policy.depths(slots, lengths).tolist() == [3, 3, 3]
    policy.observe(slots, np.array([3, 3, 3]), np.array([0, 0, 0]))
    policy.forget(4)
    depths = policy.depths(slots[:1], lengths[:1])
    assert depths.tolist() == [3]
    assert depths.dtype == np.int64
    assert policy.depths(slots[:0], lengths[:0]).shape == (0,)
