# SPDX-License-Identifier: Apache-2.0
"""The touch points against the imported package, as a launch on an NPU checks them."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import vllm
import vllm_ascend

from diffspec.hosts.releases import RELEASES
from diffspec.hosts.snapshot import asked_of
from diffspec.hosts.source import HostSource
from diffspec.hosts.surface import check_surface, installed_version, require_surface
from diffspec.hosts.touch_points import TouchPoint


def test_a_launch_accepts_this_package() -> None:
    assert installed_version("vllm-ascend", importlib.import_module) == ("0.28.0rc1", None)
    require_surface(platform="npu")


def test_source_and_import_say_the_same() -> None:
    """Also where they differ: every row asks once for what is not there."""
    roots = [Path(module.__file__ or "").parent for module in (vllm_ascend, vllm)]
    source = HostSource(*roots)
    (release,) = (r for r in RELEASES if (r.host, r.version) == ("vllm-ascend", "0.28.0rc1"))
    for point in asked_of(release):
        (imported,) = check_surface([_changed(point)])
        (read,) = check_surface([_changed(point)], source.import_module)
        assert imported == read


def _changed(point: TouchPoint) -> TouchPoint:
    if point.parameters:
        return replace(point, parameters=(*point.parameters, "no_such"))
    return replace(point, attributes=(*point.attributes, "no_such"))
