# SPDX-License-Identifier: Apache-2.0
"""The depth policy in simulation, against somebody who knows acceptances and costs.

    python -m benchmarks.simulated [--workloads 60] [--sure 12] [--out FILE]

Nothing here depends on this machine's speed. Each workload is a batch of 1 or 4 requests, with one
or two phases of random acceptance, on one of three kinds of machine; efficiency is the policy's
speed over the clairvoyant's, learning included. One more run shows a draft that turns bad and back.
Drafts that say how sure they are, rightly or wrongly, are run with the policy and with one that
does not ask them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.record import write
from diffspec.adaptive_depth.adaptive import AdaptiveDepth
from diffspec.adaptive_depth.limits import DepthLimits
from diffspec.adaptive_depth.shadow import WINDOW
from diffspec.testbed.simulator import MACHINES, Blind, Confidence, Phase, Trace, simulate

STEPS = 1000
#: Steps of the three phases of the turning draft, and its acceptance in each.
TURNS = ((300, 0.95), (300, 0.0), (300, 0.95))
#: Drafts by what their confidence tells.
DRAFTS = {
    "informative": Confidence(0.5),
    "weak": Confidence(0.2, noise=1.0),
    "too sure": Confidence(0.5, bias=2.5),
    "contrary": Confidence(0.5, truth=-1.0),
    "says nothing": Confidence(0.5, truth=0.0, noise=1.5),
}


def secret_share(trace: Trace) -> float:
    """Largest share of time that secret drafts took over any window of steps."""
    ones = np.ones(WINDOW)
    shadow, took = (np.convolve(a, ones, "valid") for a in (trace.shadow, trace.took))
    return float((shadow / took).max())


def workload(seed: int) -> dict[str, Any]:
    """One random workload and what became of it."""
    rng = np.random.default_rng(seed)
    machine = MACHINES[seed % len(MACHINES)]
    depth, length = int(rng.choice([3, 5, 7])), int(rng.choice([2048, 8192, 32768, 98304]))
    requests, decay = int(rng.choice([1, 4])), float(rng.choice([1.0, 0.9]))
    first = rng.uniform(0, 0.98, (rng.integers(1, 3), requests)).round(2).tolist()
    policy = AdaptiveDepth(requests, DepthLimits(depth))
    phases = [Phase(STEPS, rates, decay) for rates in first]
    trace = simulate(policy, machine, phases, depth=depth, length=length, seed=seed)
    return {
        "machine": machine.name,
        "depth": depth,
        "length": length,
        "decay": decay,
        "first_acceptance": first,
        "efficiency": round(trace.efficiency(), 4),
        "secret_share": round(secret_share(trace), 4),
        "switches": trace.switches(),
    }


def confident(seed: int) -> dict[str, Any]:
    """One random workload with each kind of draft: speed over a policy that does not ask it."""
    rng = np.random.default_rng(seed)
    machine = MACHINES[seed % len(MACHINES)]
    depth, length = int(rng.choice([3, 5, 7])), int(rng.choice([2048, 8192, 32768, 98304]))
    first = rng.uniform(0.1, 0.98, int(rng.choice([1, 4]))).round(2).tolist()
    over = {}
    for name, confidence in DRAFTS.items():
        speeds = [
            simulate(
                policy(len(first), DepthLimits(depth)),
                machine,
                [Phase(STEPS, first)],
                depth=depth,
                length=length,
                seed=seed,
                confidence=confidence,
            ).speed()
            for policy in (AdaptiveDepth, Blind)
        ]
        over[name] = round(speeds[0] / speeds[1], 4)
    return {
        "machine": machine.name,
        "depth": depth,
        "length": length,
        "first_acceptance": first,
        "speed_over_blind": over,
    }


def turning() -> dict[str, Any]:
    """Depths step by step while a draft turns bad and good again, by machine."""
    depths = {}
    for machine in MACHINES:
        phases = [Phase(steps, [first]) for steps, first in TURNS]
        trace = simulate(
            AdaptiveDepth(1, DepthLimits(5)), machine, phases, depth=5, length=16384, seed=1
        )
        depths[machine.name] = [int(d[0]) for d in trace.depths]
    return {"phases": TURNS, "depths": depths}


def main() -> int:
    """Run all workloads, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", type=int, default=60)
    parser.add_argument("--sure", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("evidence/policy-simulated.json"))
    options = parser.parse_args()
    cells = [workload(seed) for seed in range(options.workloads)]
    found = [cell["efficiency"] for cell in cells]
    overall = {
        "mean_efficiency": round(statistics.fmean(found), 4),
        "least_efficiency": min(found),
        "within_5_per_cent": sum(e >= 0.95 for e in found),
        "workloads": len(found),
        "largest_secret_share": max(cell["secret_share"] for cell in cells),
    }
    sure = [confident(seed) for seed in range(options.sure)]
    for name in DRAFTS if sure else ():
        ratios = [cell["speed_over_blind"][name] for cell in sure]
        overall[f"{name}: mean and least speed over blind"] = [
            round(statistics.fmean(ratios), 4),
            min(ratios),
        ]
    record = {"what": "policy in simulation", "overall": overall, "cells": cells}
    write(options.out, {**record, "confident": sure, "turning": turning()})
    table = Table("machine", "mean efficiency", "least")
    for machine in MACHINES:
        mine = [cell["efficiency"] for cell in cells if cell["machine"] == machine.name]
        table.add_row(machine.name, f"{statistics.fmean(mine):.3f}", f"{min(mine):.3f}")
    Console(width=100).print(table, overall)
    return 0


if __name__ == "__main__":
    sys.exit(main())
