# SPDX-License-Identifier: Apache-2.0
"""An endpoint that somebody else runs: what it says of itself, and what it counts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version
from prometheus_client.parser import text_string_to_metric_families

from diffspec.cli.client import Client, RequestError, parse_spec_counters
from diffspec.testbed.counters import SpecCounters

#: Seconds between two looks at ``/metrics``. DiffSpec's numbers get there about once a second.
POLL_S = 0.2
STEPS = "vllm:diffspec_request_steps_total"
_BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True)
class Endpoint:
    """Where an endpoint is and the model it serves; ``log`` is its log file, if it can be read."""

    url: str
    name: str
    log: Path | None = None


@dataclass(frozen=True)
class Reading:
    """One look at ``/metrics``: ``totals`` by sample name, summed over labels and engines."""

    totals: Mapping[str, float]
    spec: SpecCounters

    def __getitem__(self, name: str) -> float:
        """The sum; 0 for a name that is not there."""
        return self.totals.get(name, 0.0)

    @property
    def busy(self) -> float | None:
        """Requests running or waiting; None where the server does not say."""
        known = [self.totals[name] for name in _BUSY if name in self.totals]
        return sum(known) if known else None

    @property
    def diffspec(self) -> bool:
        """Whether DiffSpec reports there."""
        return STEPS in self.totals


def read(client: Client) -> Reading:
    """Look at ``/metrics``; raises RequestError."""
    page = client.get("/metrics")
    totals: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return Reading(totals, parse_spec_counters(page))
    except ValueError as error:
        raise RequestError(f"/metrics cannot be read: {error}") from error


def settled(client: Client, done: Callable[[Reading], bool], deadline_s: float) -> Reading:
    """The first reading with ``done``, or the last one before the deadline."""
    end = time.monotonic() + deadline_s
    while not done(reading := read(client)) and time.monotonic() < end:
        time.sleep(POLL_S)
    return reading


def find(url: str, model: str | None, api_key: str | None = None) -> tuple[str, int | None]:
    """Name and ``max_model_len`` (None where it is not told) of the model to ask for.

    Raises RequestError where there is none, or several and ``model`` names none of them.
    """
    with Client(Endpoint(url, ""), api_key) as client:
        try:
            cards = {card["id"]: card for card in json.loads(client.get("/v1/models"))["data"]}
        except (ValueError, KeyError, TypeError):
            raise RequestError(f"{url}/v1/models: no list of models") from None
    if model is None and len(cards) == 1:
        model = next(iter(cards))
    if model is None or model not in cards:
        what = "say which with --model" if model is None else f"no {model!r}"
        raise RequestError(f"{url} serves {', '.join(cards) or 'no model'}: {what}")
    length = cards[model].get("max_model_len")
    return model, length if isinstance(length, int) else None


def host_version(client: Client) -> str | None:
    """vLLM's version as the server tells it; None where it does not, or not as a version."""
    try:
        told = json.loads(client.get("/version"))["version"]
        return str(Version(told))
    except (RequestError, InvalidVersion, ValueError, KeyError, TypeError):
        return None
