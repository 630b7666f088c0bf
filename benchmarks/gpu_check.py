# SPDX-License-Identifier: Apache-2.0
"""One prepared check for a machine with a CUDA device: kernels, their speed, an engine.

    python -m benchmarks.gpu_check [--contexts 16384,65536,131072] [--no-engine] [--out FILE]

1. The Triton kernels and the torch functions against dense float64, at real sizes, in bfloat16.
2. Their times, as a share of the least they could take: bytes of K (and V) read, at the bandwidth
   a plain copy reaches in the same run. Caches are flushed before every timing.
3. The recall pair in an offline engine: DiffSpec's output must be the target's own known answer,
   with drafts accepted, eagerly and with CUDA graphs. Five requests: vLLM captures sizes that are
   multiples of K + 1 = 6 rows, 24 and 36 among them, so that a step of all five is padded.

**This script has not been run on a GPU yet.** Without one it refuses.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.record import write
from diffspec.compact_kv.kernels import TORCH, TRITON, KernelChoice
from diffspec.compact_kv.pages import KeyPages
from diffspec.compact_kv.rope import LocalRope
from diffspec.compact_kv.working import WorkingCache
from diffspec.retrieval.scoring import ChunkScorer
from diffspec.testbed.offline import ON, OfflineEngine, eagle3, environment, run_in_child
from diffspec.testbed.recall_pair import build_recall_pair
from diffspec.testbed.recall_prompts import make_recall_prompt

KV_HEADS, DIM, PAGE, CHUNK, BUDGET = 8, 128, 16, 64, 2048
SCALE = DIM**-0.5
#: Largest errors against float64. Products of bfloat16 are exact in float32, so masses differ only
#: by the order of summation; attention is rounded to bfloat16 twice.
MASS_ERROR, ATTENTION_ERROR = 1e-4, 2e-2
#: Bytes written between timings; more than any such device's cache.
FLUSH_BYTES = 512 << 20
console = Console(stderr=True, width=110)


def scoring(
    context: int, query_heads: int, device: torch.device, kernels: KernelChoice
) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Errors of one scoring pass over scattered row-major pages, and the pass, for timing."""
    count = -(-context // PAGE)
    cache = torch.randn((count, PAGE, KV_HEADS, 2 * DIM), device=device).bfloat16()
    t, h, d = torch.arange(PAGE), torch.arange(KV_HEADS), torch.arange(DIM)
    places = t[:, None, None] * (KV_HEADS * 2 * DIM) + h[:, None] * (2 * DIM) + d
    scorer = ChunkScorer(
        block_size=PAGE, query_heads=query_heads, kv_heads=KV_HEADS, head_dim=DIM,
        dtype=cache.dtype, scale=SCALE, chunk_size=CHUNK, max_model_len=context, max_requests=1,
        device=device, kernels=kernels,
    )  # fmt: skip
    scorer.bind(KeyPages(cache, places.to(device)))
    table = torch.randperm(count, device=device).int().unsqueeze(0)
    query = 3 * torch.randn((1, query_heads, DIM), device=device).bfloat16()
    lengths = torch.tensor([context], device=device)

    keys = cache[table[0].long(), :, :, :DIM].flatten(0, 1)[:context].double()
    grouped = query[0].double().view(KV_HEADS, -1, DIM)
    share = torch.einsum("hgd,thd->hgt", grouped, keys).mul_(SCALE).softmax(-1)
    exact = torch.nn.functional.pad(share.mean((0, 1)), (0, -context % CHUNK))
    masses = scorer.masses(query, table, lengths, context)
    error = (masses[0] - exact.view(-1, CHUNK).sum(-1)).abs().max().item()
    ok = error <= MASS_ERROR and scorer.kernels == kernels
    found = {"kernels": str(scorer.kernels), "error": error, "ok": ok}
    return found, lambda: scorer.masses(query, table, lengths, context)


def attention(
    requests: int, query_heads: int, device: torch.device, kernels: KernelChoice
) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Errors of one query per request over ragged working caches, and the call, for timing."""
    rope = LocalRope(torch.zeros((BUDGET, DIM)), neox_style=True, dtype=torch.bfloat16)
    cache = WorkingCache(
        slots=2 * requests, budget=BUDGET, heads=KV_HEADS, head_dim=DIM, dtype=torch.bfloat16,
        device=device, rope=rope, kernels=kernels, query_heads=query_heads,
    )  # fmt: skip
    cache.k.normal_(), cache.v.normal_()
    slots = 2 * torch.arange(requests, device=device)
    counts = BUDGET - 37 * torch.arange(requests, device=device)
    q = 2 * torch.randn((requests, query_heads, DIM), device=device).bfloat16()
    dense = 0 if requests == 1 else -1
    out = (
        cache.attend(q, slots, counts, BUDGET, SCALE, dense)
        .clone()
        .view(requests, query_heads, DIM)
    )
    error = 0.0
    for row, (slot, n) in enumerate(zip(slots.tolist(), counts.tolist(), strict=True)):
        k, v = (part[slot, :, :n].double() for part in (cache.k, cache.v))
        grouped = q[row].double().view(KV_HEADS, -1, DIM)
        exact = (grouped @ k.mT * SCALE).softmax(-1) @ v
        error = max(error, (out[row] - exact.flatten(0, 1)).abs().max().item())
    ok = error <= ATTENTION_ERROR and cache.kernels == kernels
    found = {"kernels": str(cache.kernels), "error": error, "ok": ok}
    return found, lambda: cache.attend(q, slots, counts, BUDGET, SCALE, dense)


def milliseconds(call: Callable[[], Any], repeats: int, flush: Tensor) -> float:
    """Median device time of one call with cold caches."""
    times: list[float] = []
    for repeat in range(repeats + 3):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        if repeat >= 3:  # the first calls pay for allocations
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


@torch.inference_mode()
def kernel_cells(contexts: Sequence[int], repeats: int, device: torch.device) -> list[Any]:
    """Every size by both kinds of kernels: errors, times, shares of the bandwidth floor."""
    flush = torch.zeros(FLUSH_BYTES // 4, device=device)
    source = torch.zeros(256 << 20, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    copy = milliseconds(lambda: target.copy_(source), repeats, flush)
    bandwidth = 2 * source.nbytes / copy  # bytes per millisecond, read and written
    row = KV_HEADS * DIM * 2
    cells = []
    for query_heads in (8, 32):
        plans: list[tuple[str, int, int, Any]] = [
            ("scoring", context, context * row, scoring) for context in contexts
        ]
        for requests in (1, 8):
            rows = sum(BUDGET - 37 * i for i in range(requests))
            plans.append(("attention", requests, 2 * rows * row, attention))
        for what, size, read, build in plans:
            for kernels in (TRITON, TORCH):
                found, call = build(size, query_heads, device, kernels)
                ms, floor = milliseconds(call, repeats, flush), read / bandwidth
                cells.append(
                    {"what": what, "size": size, "query_heads": query_heads, **found}
                    | {"ms": ms, "floor_ms": floor, "share_of_floor": floor / ms}
                )
                console.log(cells[-1])
    return [{"copy_gb_s": bandwidth / 1e6}, *cells]


def answers(
    target: str,
    speculative: dict[str, Any] | None,
    prompts: list[list[int]],
    tokens: int,
    **engine: Any,
) -> dict[str, Any]:
    """One engine (in a child process): its answers to the batch, and whose kernels drafted."""
    llm = OfflineEngine(target, speculative=speculative, **engine)
    found = llm.generate(prompts, tokens)
    result: dict[str, Any] = {
        "tokens": [answer.token_ids for answer in found],
        "decode_tok_s": [round(answer.decode_tok_s, 1) for answer in found],
    }
    if speculative:
        cycle = llm.session.cycle
        result["per_position"] = llm.counters().per_position
        result["retrievals"] = cycle.counters.retrievals
        result["scoring"] = str(cycle.working_set.scorer.kernels)
        result["attention"] = str(cycle.working_set.working.kernels)
    return result


def engine_cells(lengths: Sequence[int], tokens: int) -> list[dict[str, Any]]:
    """The recall pair with a draft built for 2K; bfloat16, which FlashAttention needs."""
    prompts = [make_recall_prompt(n, seed=n) for n in lengths]
    truth = [list(p.continuation_ids)[:tokens] for p in prompts]
    with tempfile.TemporaryDirectory() as name:
        pair = build_recall_pair(Path(name), dtype="bfloat16", draft_max_position_embeddings=BUDGET)
        ours = eagle3(pair.draft, 5, **ON)
        arms = {
            "target-only": (None, True),
            "DiffSpec, eager": (ours, True),
            "DiffSpec, CUDA graphs": (ours, False),
        }
        cells: list[dict[str, Any]] = []
        reference: list[list[int]] = []
        for arm, (speculative, eager) in arms.items():
            arguments = {
                "target": str(pair.target),
                "speculative": speculative,
                "prompts": [list(p.prompt_ids) for p in prompts],
                "tokens": tokens,
                "dtype": "bfloat16",
                "max_model_len": max(lengths) + tokens + 32,
                "max_num_seqs": 8,
                "enforce_eager": eager,
                "gpu_memory_utilization": 0.6,
            }
            cell = run_in_child("benchmarks.gpu_check:answers", arguments, env=environment())
            mine = cell.pop("tokens")
            reference = reference or mine
            same = [sum(map(list.__eq__, mine, other)) for other in (reference, truth)]
            cell |= {"what": arm, "of": len(mine), "as_target_only": same[0], "as_known": same[1]}
            cell["ok"] = same == [len(mine)] * 2
            if speculative:
                cell["ok"] &= min(cell["per_position"], default=0) >= 0.95
                cell["ok"] &= cell["scoring"] == cell["attention"] == "triton"
            cells.append(cell)
            console.log(cell)
    return cells


def main() -> int:
    """Check everything and write the record; 1 if anything fails to hold, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("evidence/gpu-check.json"))
    parser.add_argument("--contexts", default="16384,65536,131072")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--no-engine", action="store_true", help="kernels only")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        console.print(f"gpu_check needs a CUDA device; torch {torch.__version__} sees none")
        return 2
    contexts = [int(n) for n in options.contexts.split(",")]
    kernels = kernel_cells(contexts, options.repeats, torch.device("cuda"))
    engine = [] if options.no_engine else engine_cells((2048, 4096, 8192, 16384, 30000), 128)
    write(options.out, {"what": "GPU check", "kernels": kernels, "engine": engine})
    failures = [cell for cell in (*kernels, *engine) if not cell.get("ok", True)]
    for cell in failures:
        console.print("[red]FAILS[/red]", cell)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
