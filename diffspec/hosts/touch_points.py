# SPDX-License-Identifier: Apache-2.0
"""Every place where DiffSpec meets its hosts: what is done there, why, and what it looks like."""

from __future__ import annotations

from collections.abc import Sequence

from diffspec.hosts.ascend_drafter_points import ASCEND_DRAFTER_POINTS
from diffspec.hosts.ascend_points import ASCEND_POINTS
from diffspec.hosts.drafter_points import DRAFTER_POINTS
from diffspec.hosts.touch_point import Stage, TouchPoint
from diffspec.hosts.vllm_points import VLLM_POINTS

__all__ = ["TOUCH_POINTS", "Stage", "TouchPoint", "rows_for"]

TOUCH_POINTS: tuple[TouchPoint, ...] = (
    *VLLM_POINTS,
    *DRAFTER_POINTS,
    *ASCEND_POINTS,
    *ASCEND_DRAFTER_POINTS,
)


def rows_for(
    platform: str | None,
    stages: Sequence[Stage] = ("config", "worker", "load"),
    table: Sequence[TouchPoint] = TOUCH_POINTS,
) -> tuple[TouchPoint, ...]:
    """The rows a launch on one device type (``cpu``, ``cuda``, ``npu``) needs at ``stages``.

    Without a platform only the rows for any platform.
    """
    return tuple(p for p in table if p.stage in stages and p.platform in ("any", platform))
