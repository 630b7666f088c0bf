# SPDX-License-Identifier: Apache-2.0
"""The retrieval pass against the least it could cost: one plain read of the same keys.

    python -m benchmarks.retrieval_pass [--lengths 8192,16384,32768] [--out FILE]

Pages are laid out as vLLM's CPU backend does. Each pass is timed right after a copy of as many
bytes as the layer's K holds, and both start with cold caches: in an engine the target has just
streamed its whole KV cache when retrieval begins.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.record import write
from diffspec.compact_kv.pages import KeyPages
from diffspec.retrieval.scoring import ChunkScorer

BLOCK, CHUNK = 128, 64


def flush_bytes() -> int:
    """Bytes written between timings: twice the last-level cache, at least 64 MiB."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    largest = max((int(p.read_text().strip().rstrip("K")) << 10 for p in sizes), default=0)
    return max(64 << 20, 2 * largest)


@dataclass(frozen=True)
class Shape:
    """Heads of the scored layer."""

    name: str
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype


SHAPES = (
    Shape("recall pair", 4, 2, 128, torch.float32),
    Shape("SmolLM2-135M", 9, 3, 64, torch.bfloat16),
    Shape("Llama-3.1-8B", 32, 8, 128, torch.float32),
    Shape("Llama-3.1-8B", 32, 8, 128, torch.bfloat16),
)


def pages_of(shape: Shape, length: int) -> KeyPages:
    """Random keys in the CPU backend's layout: per page and head K as ``[head_dim, page]``."""
    count = -(-length // BLOCK)
    size = (count, shape.kv_heads, BLOCK, 2 * shape.head_dim)
    t, h, d = torch.arange(BLOCK), torch.arange(shape.kv_heads), torch.arange(shape.head_dim)
    places = h[:, None] * (2 * BLOCK * shape.head_dim) + d * BLOCK + t[:, None, None]
    return KeyPages(torch.randn(size, dtype=torch.float32).to(shape.dtype), places)


def timed(call: Callable[[], Any], flush: torch.Tensor) -> float:
    """Milliseconds of one call with cold caches."""
    flush.add_(1)
    begin = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin)


@torch.inference_mode()
def cell(shape: Shape, length: int, repeats: int, *, scattered: bool) -> dict[str, Any]:
    """Median time of the pass, of the copy, and of their paired ratio."""
    pages = pages_of(shape, length)
    scorer = ChunkScorer(
        block_size=BLOCK,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        scale=shape.head_dim**-0.5,
        chunk_size=CHUNK,
        max_model_len=length,
        max_requests=1,
        device=torch.device("cpu"),
    )
    scorer.bind(pages)
    count = -(-length // BLOCK)
    table = torch.randperm(count) if scattered else torch.arange(count)
    table = table.to(torch.int32).unsqueeze(0)
    query = torch.randn(1, shape.query_heads, shape.head_dim).to(shape.dtype)
    lengths = torch.tensor([length])
    source = torch.randn(length * shape.kv_heads * shape.head_dim).to(shape.dtype)
    target = torch.empty_like(source)
    flush = torch.zeros(flush_bytes() // 4)
    scores, copies = [], []
    for repeat in range(repeats + 2):
        score = timed(lambda: scorer.masses(query, table, lengths, length), flush)
        copy = timed(lambda: target.copy_(source), flush)
        if repeat >= 2:  # the first calls pay for first touches
            scores.append(score)
            copies.append(copy)
    return {
        "shape": shape.name,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "length": length,
        "pages": "scattered" if scattered else "neighbouring",
        "key_mib": round(source.nbytes / 2**20, 1),
        "pass_ms": round(statistics.median(scores), 3),
        "copy_ms": round(statistics.median(copies), 3),
        "ratio": round(statistics.median(a / b for a, b in zip(scores, copies, strict=True)), 2),
    }


def main() -> int:
    """Measure every shape, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("evidence/retrieval-pass.json"))
    parser.add_argument("--lengths", default="8192,16384,32768")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    lengths = [int(n) for n in options.lengths.split(",")]
    cells = [
        cell(shape, length, options.repeats, scattered=scattered)
        for shape in SHAPES
        for length in lengths
        for scattered in (False, True)
    ]
    table = Table(*cells[0])
    for row in cells:
        table.add_row(*map(str, row.values()))
    Console(width=110).print(table)
    threads = torch.get_num_threads()
    how = {"threads": threads, "flushed_mib": flush_bytes() >> 20}
    write(options.out, {"what": "retrieval pass", **how, "cells": cells})
    return 0


if __name__ == "__main__":
    sys.exit(main())
