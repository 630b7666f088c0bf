# SPDX-License-Identifier: Apache-2.0
"""Which refusals hold on which platform, and the lane that was qualified on Ascend.

The rows are :data:`diffspec.hosts.unsupported.UNSUPPORTED`. Some of them refuse only because
nobody tried the case *on vLLM's CPU and CUDA hosts*; a launch judged for Ascend is held against the
requirements of the lane that was qualified there instead, :data:`diffspec.hosts.ascend_lane.LANE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from diffspec.doctor.findings import Finding, Level, from_message, ok, warning
from diffspec.doctor.surroundings import Platform
from diffspec.hosts import ascend_lane
from diffspec.hosts.launch import LaunchFacts
from diffspec.hosts.unsupported import PLATFORMS, UNSUPPORTED, applying

#: vLLM's name of the device, where it is not the platform's own.
DEVICE_TYPE: dict[str, str] = {"ascend": "npu"}

_ABOUT_MODELS = (
    "multimodal",
    "target_",
    "hybrid_target",
    "no_full_attention",
    "draft_layers",
    "draft_mla",
    "draft_hidden_size",
    "draft_vocabulary",
    "draft_heads",
    "draft_sliding_window",
    "draft_mrope",
    "draft_rope",
)

_LONG_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def supported(platform: Platform | None) -> bool:
    """Whether this release has a worker for the platform."""
    return device(platform) in PLATFORMS


def device(platform: Platform | None) -> str | None:
    """The device type by which the tables of the hosts know a platform."""
    return DEVICE_TYPE.get(platform, platform) if platform is not None else None


def refused_platform(platform: Platform) -> str:
    """The text with which a launch on an unsupported platform is refused."""
    (row,) = (row for row in UNSUPPORTED if row.id == "platform")
    return row.message.format(f=LaunchFacts(platform=device(platform)))


def refused(
    facts: LaunchFacts, platform: Platform | None, area: str, *, softened: Iterable[str] = ()
) -> list[Finding]:
    """A finding for every row that applies to ``facts``; ``softened`` rows become warnings."""
    # Whether the device will do is a finding about the machine, not about a pair or a command.
    facts = replace(facts, platform=device(platform))
    soft = set(softened)
    found = []
    for row in applying(facts):
        if row.id == "platform":
            continue
        place = "pair" if row.id.startswith(_ABOUT_MODELS) else area
        level: Level = "warning" if row.id in soft else "error"
        found.append(from_message(f"{place}.{row.id}", level, row.message.format(f=facts)))
    return found


def ascend(
    facts: LaunchFacts, environ: Mapping[str, str], *, served: int | None, window: int | None
) -> list[Finding]:
    """Where a command leaves the lane that was qualified on Ascend.

    ``served`` and ``window`` are the served length and the draft's own, in tokens.
    """
    outside = [
        warning(f"lane.{d.id}", f"{d.what} ({d.known})", d.fix)
        for d in ascend_lane.departures(facts)
    ]
    long = environ.get(_LONG_VARIABLE, "").lower() in ("1", "true")
    if served is not None and window is not None and served > window and not long:
        outside.append(
            warning(
                "lane.long_max_model_len",
                f"the served length {served} is above the draft's {window} and {_LONG_VARIABLE} is "
                "not set, which the qualified launch had",
                f"export {_LONG_VARIABLE}=1",
            )
        )
    if not outside:
        outside.append(ok("lane.qualified", "the launch has the settings of the qualified lane"))
    notes = ascend_lane.notes(facts)
    return outside + [warning(f"lane.{d.id}", f"{d.what} ({d.known})", d.fix) for d in notes]
