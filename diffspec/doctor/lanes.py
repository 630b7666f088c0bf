# SPDX-License-Identifier: Apache-2.0
"""Which refusals hold on which platform, and the lane that was qualified on Ascend.

The rows are :data:`diffspec.hosts.unsupported.UNSUPPORTED`. Some of them refuse only because
nobody tried the case *on vLLM's CPU and CUDA hosts*; a launch judged for Ascend is held against the
requirements of the lane that was qualified there instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diffspec.doctor.findings import Finding, Level, error, from_message, ok, warning
from diffspec.doctor.surroundings import Platform
from diffspec.hosts.unsupported import NOT_ON_ASCEND, UNSUPPORTED, LaunchFacts, applying
from diffspec.hosts.vllm.facts import WORKERS

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

QUALIFIED_TENSOR_PARALLEL = 4
QUALIFIED_DTYPE = "bfloat16"
QUALIFIED_GRAPHS = "FULL_DECODE_ONLY"
_LONG_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def supported(platform: Platform | None) -> bool:
    """Whether this release has a worker for the platform."""
    return platform in WORKERS


def refused_platform(platform: Platform) -> str:
    """The text with which a launch on an unsupported platform is refused."""
    (row,) = (row for row in UNSUPPORTED if row.id == "platform")
    return row.message.format(f=LaunchFacts(platform=DEVICE_TYPE.get(platform, platform)))


def refused(
    facts: LaunchFacts, platform: Platform | None, area: str, *, softened: Iterable[str] = ()
) -> list[Finding]:
    """A finding for every row that applies to ``facts``; ``softened`` rows become warnings."""
    # Judged as a finding about the machine, not about a pair or a command.
    left_out = {"platform"} | (NOT_ON_ASCEND if platform == "ascend" else frozenset())
    soft = {"multimodal"} if platform == "ascend" else set()
    soft |= set(softened)
    found = []
    for row in applying(facts):
        if row.id in left_out:
            continue
        place = "pair" if row.id.startswith(_ABOUT_MODELS) else area
        level: Level = "warning" if row.id in soft else "error"
        found.append(from_message(f"{place}.{row.id}", level, row.message.format(f=facts)))
    return found


@dataclass(frozen=True, slots=True)
class AscendLaunch:
    """What the Ascend lane's own rules look at; None means not said on the command line."""

    facts: LaunchFacts
    prefix_caching: bool | None = None
    quantisation: str | None = None
    enforce_eager: bool | None = None
    graph_mode: str | None = None
    capture_sizes: tuple[int, ...] = ()
    max_num_seqs: int | None = None
    depth: int | None = None
    served_length: int | None = None
    trained_window: int | None = None
    additional_config: Mapping[str, Any] | None = None


def quantised(what: str) -> Finding:
    """Quantisation where the lane forbids it."""
    return error(
        "lane.quantisation",
        f"{what}: the Ascend lane runs without quantisation",
        "use unquantised weights and remove --quantization",
    )


def ascend(launch: AscendLaunch, environ: Mapping[str, str]) -> list[Finding]:
    """A command line against what the qualified lane on Ascend requires and what was run there."""
    found = [*_switches(launch), *_cell(launch), *_graphs(launch)]
    if launch.quantisation is not None:
        found.append(quantised(f"--quantization {launch.quantisation}"))
    extra = launch.additional_config or {}
    if window := extra.get("draft_window_size"):
        found.append(
            error(
                "lane.draft_window",
                f"--additional-config has draft_window_size = {window}: the host's own sliding "
                "window of the draft and DiffSpec both choose what it attends to",
                "remove draft_window_size",
            )
        )
    served, window = launch.served_length, launch.trained_window
    long = environ.get(_LONG_VARIABLE, "").lower() in ("1", "true")
    if served is not None and window is not None and served > window and not long:
        found.append(
            warning(
                "lane.long_max_model_len",
                f"the served length {served} is above the draft's {window} and {_LONG_VARIABLE} is "
                "not set, which the qualified launch had",
                f"export {_LONG_VARIABLE}=1",
            )
        )
    if not found:
        found.append(ok("lane.qualified", "the launch has the settings of the qualified lane"))
    return found


def _switches(launch: AscendLaunch) -> list[Finding]:
    found = []
    if launch.prefix_caching:
        found.append(
            error(
                "lane.prefix_caching",
                "--enable-prefix-caching: the Ascend lane runs without prefix caching",
                "use --no-enable-prefix-caching",
            )
        )
    elif launch.prefix_caching is None:
        found.append(
            warning(
                "lane.prefix_caching",
                "prefix caching is not switched off; vLLM decides by the model, and the Ascend "
                "lane runs without it",
                "add --no-enable-prefix-caching",
            )
        )
    if launch.facts.async_scheduling is None:
        found.append(
            warning(
                "lane.async_scheduling",
                "asynchronous scheduling is not switched off, and the Ascend lane runs without it",
                "add --no-async-scheduling",
            )
        )
    return found


def _cell(launch: AscendLaunch) -> list[Finding]:
    found = []
    size = launch.facts.tensor_parallel_size or 1
    if size != QUALIFIED_TENSOR_PARALLEL:
        found.append(
            warning(
                "lane.tensor_parallel",
                f"tensor-parallel size {size}: qualified at {QUALIFIED_TENSOR_PARALLEL} alone",
                f"use --tensor-parallel-size {QUALIFIED_TENSOR_PARALLEL}",
            )
        )
    dtype = launch.facts.model_dtype
    if dtype not in (None, QUALIFIED_DTYPE):
        found.append(
            warning(
                "lane.dtype",
                f"the models run in {dtype}: qualified in {QUALIFIED_DTYPE} alone",
                f"use --dtype {QUALIFIED_DTYPE}",
            )
        )
    return found


def _graphs(launch: AscendLaunch) -> list[Finding]:
    if launch.enforce_eager or launch.graph_mode != QUALIFIED_GRAPHS:
        mode = "--enforce-eager" if launch.enforce_eager else f"graph mode {launch.graph_mode}"
        return [
            warning(
                "lane.graphs",
                f"{mode.replace('None', 'left to vLLM')}: qualified with {QUALIFIED_GRAPHS} alone",
                'add --compilation-config \'{"cudagraph_mode": "FULL_DECODE_ONLY"}\' and leave '
                "--enforce-eager out",
            )
        ]
    rows, sizes = (launch.depth or 0) + 1, launch.capture_sizes
    if launch.depth is None or not sizes:
        return []
    if odd := [size for size in sizes if size % rows]:
        return [
            warning(
                "lane.capture_sizes",
                f"cudagraph_capture_sizes {odd} are no multiples of num_speculative_tokens + 1 = "
                f"{rows}, the rows a verified request takes",
                f"use multiples of {rows}",
            )
        ]
    seqs = launch.max_num_seqs
    if seqs is not None and seqs * rows > max(sizes):
        return [
            warning(
                "lane.capture_sizes",
                f"--max-num-seqs {seqs} needs {seqs * rows} rows but the largest captured size is "
                f"{max(sizes)}",
                f"add {seqs * rows} to cudagraph_capture_sizes, or use --max-num-seqs "
                f"{max(1, math.floor(max(sizes) / rows))}",
            )
        ]
    return []
