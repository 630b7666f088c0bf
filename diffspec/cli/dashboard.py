# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard for DiffSpec's metrics, written from a short description of its panels.

python -m diffspec.cli.dashboard > docs/grafana-diffspec.json      (a test keeps it current)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_FILTER = '{model_name=~"$model_name",engine=~"$engine"}'
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 24


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: ``queries`` are pairs of PromQL and legend, ``unit`` is one of Grafana's.

    In a query, ``X[]`` stands for ``rate(vllm:diffspec_X_total{...}[...])`` and ``X{}`` for
    ``vllm:diffspec_X{...}``.
    """

    title: str
    description: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    stacked: bool = False
    most: float | None = None


_ROWS: dict[str, Sequence[Panel]] = {
    "What drafting brings": (
        Panel(
            "Tokens per decode step",
            "1 without speculation. Steps without drafts count.",
            [("1 + sum(accepted_tokens[]) / sum(request_steps[])", "tokens per step")],
        ),
        Panel(
            "Acceptance",
            "Share of drafted tokens that were accepted; the estimate for a first drafted token; "
            "and the acceptance from which drafting pays. Below that line DiffSpec stops drafting.",
            [
                ("sum(accepted_tokens[]) / sum(drafted_tokens[])", "accepted of drafted"),
                ("max(acceptance_first{})", "first drafted token (estimate)"),
                ("max(break_even{})", "drafting pays from (estimate)"),
            ],
            unit="percentunit",
            most=1,
        ),
        Panel(
            "Decode steps by depth",
            "Requests times steps per second, by the number of tokens drafted.",
            [("sum by (depth) (request_steps[])", "{{depth}} drafted")],
            unit="ops",
            stacked=True,
        ),
        Panel(
            "Steps without drafts, by reason",
            "As a share of all decode steps. no_gain: drafting would not have been faster.",
            [
                (
                    "sum by (reason) (depth_zero[]) / ignoring (reason) group_left () "
                    "sum(request_steps[])",
                    "{{reason}}",
                )
            ],
            unit="percentunit",
            stacked=True,
            most=1,
        ),
        Panel(
            "Shadow drafts",
            "Tokens drafted without being submitted, per second, while drafting does not pay.",
            [("sum(shadow_drafts[])", "shadow drafts"), ("sum(shadow_hits[])", "of these right")],
            unit="ops",
        ),
        Panel(
            "Early stop",
            "Drafted tokens that were not submitted, because the draft was unsure of them.",
            [("sum(cut_tokens[]) / (sum(cut_tokens[]) + sum(drafted_tokens[]))", "cut of drafted")],
            unit="percentunit",
            most=1,
        ),
    ),
    "Retrieval and working caches": (
        Panel(
            "Retrievals and rebuilds",
            "Per second. A retrieval scores the target's keys; every retrieval is a rebuild.",
            [("sum(retrievals[])", "retrievals"), ("sum(rebuilds[])", "rebuilds")],
            unit="ops",
        ),
        Panel(
            "Rows changed per retrieval",
            "How much of a working cache a retrieval replaces, in tokens.",
            [("sum(rows_changed[]) / sum(retrievals[])", "rows")],
        ),
        Panel(
            "Stability of the selection",
            "Share of chunks that the last retrievals kept.",
            [("avg(stability{})", "kept")],
            unit="percentunit",
            most=1,
        ),
        Panel(
            "Working caches",
            "Tokens in them, and drafting slots in use.",
            [("sum(working_tokens{})", "tokens"), ("sum(slots_used{})", "slots")],
        ),
    ),
    "Time and faults": (
        Panel(
            "Time by part of a step",
            "Seconds per second of wall time. Verify is the target's; the rest is DiffSpec's.",
            [("sum by (part) (step_seconds[])", "{{part}}")],
            unit="percentunit",
            stacked=True,
        ),
        Panel(
            "Faults",
            "Per second, by kind. Each cost one step its drafts; the log has the first traceback.",
            [("sum by (kind) (faults[])", "{{kind}}")],
            unit="ops",
        ),
        Panel(
            "Switched off after faults",
            "1: this process drafts no more until it is started again.",
            [("max(off{})", "off")],
            kind="stat",
        ),
    ),
}


def expression(query: str) -> str:
    """The PromQL of a query in the shorthand of :class:`Panel`."""
    filled = re.sub(
        r"(\w+)\[\]", rf"rate(vllm:diffspec_\1_total{_FILTER}[$__rate_interval])", query
    )
    return re.sub(r"(\w+)\{\}", rf"vllm:diffspec_\1{_FILTER}", filled)


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    return {
        "title": "DiffSpec in vLLM",
        "uid": "vllm-diffspec",
        "description": "Written by python -m diffspec.cli.dashboard of vllm-diffspec.",
        "tags": ["vllm", "speculative decoding"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
    }
    for name, label in (("model_name", "Model"), ("engine", "Engine")):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values(vllm:diffspec_request_steps_total, {name})",
            "refresh": 2,
            "sort": 1,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
            "hide": 0,
        }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in _ROWS.items():
        number += 1
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        y += 1
        for index, panel in enumerate(panels):
            number += 1
            x = index * _WIDTH % _COLUMNS
            row = index * _WIDTH // _COLUMNS
            place = {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y + row * _HEIGHT}
            yield _panel(panel, number, place)
        y += -(-len(panels) * _WIDTH // _COLUMNS) * _HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": {}}
    if panel.most is not None:
        defaults["max"] = panel.most
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "none"},
        }
    else:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expression(query),
                "legendFormat": legend,
                "range": True,
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
