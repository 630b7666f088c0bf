# SPDX-License-Identifier: Apache-2.0
"""The lane that was qualified on Ascend, as data: what it requires and what is known beyond it.

Source: the owner's qualification of 2026-09-04 (evidence/sage-mate-20260904-tp4-graph.json). What
cannot work outside of it is refused by the rows of :mod:`diffspec.hosts.unsupported`; the rows here
name what merely was not qualified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diffspec.hosts.launch import LaunchFacts

DTYPE = "bfloat16"
TENSOR_PARALLEL = 4
GRAPHS = "FULL_DECODE_ONLY"
CAPTURE_SIZES = (4, 8, 12, 16)
VOCABULARY = 248_320


@dataclass(frozen=True, slots=True)
class Departure:
    """One way in which a launch is outside the lane. ``what`` departs, ``fix`` brings it back,
    ``known`` says what is known of such launches."""

    id: str
    what: str
    fix: str
    known: str


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement. ``departs`` says of a launch what departs and what to change, or None;
    what is not known of a launch does not depart."""

    id: str
    requires: str
    known: str
    departs: Callable[[LaunchFacts], tuple[str, str] | None]


def departures(facts: LaunchFacts) -> list[Departure]:
    """Where a launch leaves the lane, in the order of its requirements."""
    found = ((row, row.departs(facts)) for row in LANE)
    return [Departure(row.id, *told, row.known) for row, told in found if told is not None]


def notes(facts: LaunchFacts) -> list[Departure]:
    """What was part of the qualified lane and has nevertheless to be said of a launch."""
    found = ((row, row.departs(facts)) for row in NOTES)
    return [Departure(row.id, *told, row.known) for row, told in found if told is not None]


def note(facts: LaunchFacts) -> str | None:
    """One line with all notes; None without any and on other devices."""
    if facts.platform != "npu" or not (found := notes(facts)):
        return None
    return "DiffSpec: " + "; ".join(f"{d.what} ({d.known})" for d in found)


def warning(facts: LaunchFacts) -> str | None:
    """One line about everything that is outside the lane; None inside it and on other devices."""
    if facts.platform != "npu" or not (found := departures(facts)):
        return None
    listed = "; ".join(f"{d.what} ({d.known})" for d in found)
    return f"DiffSpec: outside of what was qualified on Ascend: {listed}"


def _dtype(f: LaunchFacts) -> tuple[str, str] | None:
    if f.model_dtype in (None, DTYPE):
        return None
    return (
        f"the models run in {f.model_dtype}: qualified in {DTYPE} alone",
        f"use --dtype {DTYPE}",
    )


def _tensor_parallel(f: LaunchFacts) -> tuple[str, str] | None:
    size = f.tensor_parallel_size
    if size in (None, TENSOR_PARALLEL):
        return None
    return (
        f"tensor-parallel size {size}: qualified at {TENSOR_PARALLEL} alone",
        f"use --tensor-parallel-size {TENSOR_PARALLEL}",
    )


def _prefix_caching(f: LaunchFacts) -> tuple[str, str] | None:
    if f.prefix_caching is False:
        return None
    how = "prefix caching is on" if f.prefix_caching else "prefix caching is left to vLLM"
    return f"{how}: the qualified launch had it off", "add --no-enable-prefix-caching"


def _async_scheduling(f: LaunchFacts) -> tuple[str, str] | None:
    if f.async_scheduling is not None:
        return None  # off, or refused
    return (
        "asynchronous scheduling is not switched off on the command line; DiffSpec does it",
        "add --no-async-scheduling",
    )


def _quantisation(f: LaunchFacts) -> tuple[str, str] | None:
    if f.quantisation is None:
        return None
    return (
        f"quantised weights ({f.quantisation}): the qualified launch had none",
        "use unquantised weights and remove --quantization",
    )


def _graphs(f: LaunchFacts) -> tuple[str, str] | None:
    if not f.enforce_eager and f.graph_mode == GRAPHS:
        return None
    mode = "--enforce-eager" if f.enforce_eager else f"graph mode {f.graph_mode or 'left to vLLM'}"
    return (
        f"{mode}: qualified with {GRAPHS} alone",
        f'add --compilation-config \'{{"cudagraph_mode": "{GRAPHS}"}}\' and leave --enforce-eager '
        "out",
    )


def _capture_sizes(f: LaunchFacts) -> tuple[str, str] | None:
    rows, sizes = (f.depth or 0) + 1, f.capture_sizes
    if f.depth is None or not sizes or f.enforce_eager or f.graph_mode != GRAPHS:
        return None
    if odd := [size for size in sizes if size % rows]:
        return (
            f"cudagraph_capture_sizes {odd} are no multiples of num_speculative_tokens + 1 = "
            f"{rows}, the rows a verified request takes",
            f"use multiples of {rows}",
        )
    seqs = f.max_num_seqs
    if seqs is not None and seqs * rows > max(sizes):
        return (
            f"--max-num-seqs {seqs} needs {seqs * rows} rows but the largest captured size is "
            f"{max(sizes)}",
            f"add {seqs * rows} to cudagraph_capture_sizes, or use --max-num-seqs "
            f"{max(1, max(sizes) // rows)}",
        )
    return None


def _vocabulary(f: LaunchFacts) -> tuple[str, str] | None:
    if f.target_vocab_size in (None, VOCABULARY):
        return None
    return (
        f"a vocabulary of {f.target_vocab_size}: the qualified pair has {VOCABULARY}",
        "qualify this pair before relying on it",
    )


def _target_mrope(f: LaunchFacts) -> tuple[str, str] | None:
    if not f.target_mrope:
        return None
    return "the target's positions have several dimensions (M-RoPE)", "send text alone"


def _recurrent(f: LaunchFacts) -> tuple[str, str] | None:
    if not f.target_hybrid:
        return None
    return (
        "recurrent target (linear attention or Mamba layers): it drafts at least one token in "
        "every step, whether that pays or not",
        "qualify it before relying on it",
    )


LANE: tuple[Requirement, ...] = (
    Requirement(
        "dtype",
        "bfloat16",
        "float16 and float32 were run on vLLM's CPU host, never on an NPU",
        _dtype,
    ),
    Requirement(
        "tensor_parallel",
        "tensor-parallel size 4, pipeline-parallel size 1",
        "ranks agree by the same exchange at any size, tried on CPU ranks alone",
        _tensor_parallel,
    ),
    Requirement(
        "prefix_caching",
        "prefix caching off",
        "shared pages were tried on vLLM's CPU host, never on an NPU",
        _prefix_caching,
    ),
    Requirement(
        "async_scheduling",
        "asynchronous scheduling off",
        "the synchronous scheduler is the only one that takes drafts of differing length",
        _async_scheduling,
    ),
    Requirement(
        "quantisation",
        "no quantisation",
        "nobody has tried DiffSpec with quantised weights",
        _quantisation,
    ),
    Requirement(
        "graphs",
        "graph execution, FULL_DECODE_ONLY",
        "the same code runs eagerly or between pieces of a graph, unmeasured",
        _graphs,
    ),
    Requirement(
        "capture_sizes",
        "capture sizes that are multiples of num_speculative_tokens + 1 and hold every request; "
        f"qualified: {list(CAPTURE_SIZES)} with 3 tokens and 4 requests",
        "a step of a size that was not captured runs without its graph, slower",
        _capture_sizes,
    ),
    Requirement(
        "vocabulary",
        f"the target's vocabulary and the draft's equal; qualified: {VOCABULARY}",
        "drafts made for another vocabulary are refused; other pairs were never run on an NPU",
        _vocabulary,
    ),
    Requirement(
        "target_mrope",
        "no M-RoPE",
        "text has the same position in every dimension, and the draft's own keys need none",
        _target_mrope,
    ),
)

NOTES: tuple[Requirement, ...] = (
    Requirement(
        "recurrent",
        "a recurrent target",
        "a real one was never run by this project; the lane, with an earlier build, had one",
        _recurrent,
    ),
)
