# SPDX-License-Identifier: Apache-2.0
"""The table of metrics, and the pages and the dashboard that speak of them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from diffspec.adaptive_depth.adaptive import AdaptiveDepth
from diffspec.adaptive_depth.limits import DepthLimits
from diffspec.cli.dashboard import dashboard, expression
from diffspec.metrics import METRICS, PREFIX, increase, layout
from tests.unit.serving import Host, Shape

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = {PREFIX + metric.name for metric in METRICS}
PANELS = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_names_and_labels_follow_prometheus() -> None:
    assert len(NAMES) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"diffspec_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") is (metric.kind == "counter")
        assert metric.label not in ("model_name", "engine", "le", "quantile", "pid")
        assert len(set(metric.values)) == len(metric.values)
        assert metric.help.endswith(".")


def test_the_number_of_series_is_bounded_by_the_depth() -> None:
    assert len(layout(16)) == 17 + 30
    for depth in (1, 3, 16):
        keys = layout(depth)
        assert len(set(keys)) == len(keys) == depth + 1 + 30
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert "K + 31 series of DiffSpec (K is `num_speculative_tokens`): 47 at K = 16" in page
    assert "depth/16" in layout(16)
    assert "depth/16" not in layout(15)


def test_the_keys_of_the_proposer_are_those_of_the_table() -> None:
    shape = Shape()
    host = Host(shape)
    beliefs = AdaptiveDepth(1, DepthLimits(shape.depth)).gauges(1, 100)
    assert set(host.cycle.numbers()) | set(beliefs) == set(layout(shape.depth))
    host.cycle.faults.record("drafting", RuntimeError())
    host.cycle.faults.record("planning", RuntimeError())
    found = host.cycle.numbers()
    faults = [found[f"faults/{kind}"] for kind in ("draft", "ingest", "other")]
    assert faults == [1, 0, 1]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (0, 5, 5),
        (5, 5, 0),
        (5, 7.5, 2.5),
        (7, 2, 2),
        (3, math.nan, 0),
        (3, math.inf, 0),
        (3, -1, 0),
    ],
)
def test_a_counter_never_goes_back(before: float, now: float, expected: float) -> None:
    assert increase(before, now) == expected


def test_the_page_speaks_of_every_metric_and_of_no_other() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"vllm:diffspec_[a-z_]+[a-z]", page))
    assert named == NAMES
    for metric in METRICS:
        for value in metric.values:
            assert f"`{value}`" in page, (metric.name, value)


# -- the dashboard --


def named_in(query: str) -> set[str]:
    return set(re.findall(r"vllm:[a-z_]+", query))


def test_the_dashboard_is_current() -> None:
    text = (DOCS / "grafana-diffspec.json").read_text(encoding="utf-8")
    assert text == json.dumps(dashboard(), indent=2) + "\n", (
        "run: python -m diffspec.cli.dashboard > docs/grafana-diffspec.json"
    )


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert set().union(*map(named_in, queries)) == NAMES
    counters = {PREFIX + metric.name for metric in METRICS if metric.kind == "counter"}
    for query in queries:
        assert query.count("(") == query.count(")")
        # A counter is of use as a rate alone, and a gauge never is.
        assert set(re.findall(r"rate\((vllm:[a-z_]+)\{[^}]*\}\[\$__rate_interval\]\)", query)) == (
            named_in(query) & counters
        )


def test_labels_in_queries_and_legends_exist() -> None:
    labels = {PREFIX + metric.name: metric.label for metric in METRICS}
    for panel in PANELS:
        for target in panel["targets"]:
            known = {labels[name] for name in named_in(target["expr"])}
            used = re.findall(r"by \((\w+)\)", target["expr"])
            used += re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            assert set(used) <= known, target


def test_the_dashboard_has_a_data_source_to_choose_and_panels_that_do_not_overlap() -> None:
    board = dashboard()
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for name in ("model_name", "engine"):
        assert named_in(variables[name]["query"]) <= NAMES
    ids, taken = set(), set()
    for panel in board["panels"]:
        ids.add(panel["id"])
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len(ids) == len(board["panels"])
    for reference in data_sources(board):
        assert reference == {"type": "prometheus", "uid": "${datasource}"}


def data_sources(node: Any) -> list[Any]:
    """Everything called a data source, anywhere in a dashboard."""
    if isinstance(node, list):
        return [found for item in node for found in data_sources(item)]
    if not isinstance(node, dict):
        return []
    here = [node["datasource"]] if "datasource" in node else []
    return here + data_sources(list(node.values()))


def test_the_shorthand_of_queries() -> None:
    where = '{model_name=~"$model_name",engine=~"$engine"}'
    assert expression("max(off{})") == f"max(vllm:diffspec_off{where})"
    assert expression("sum by (kind) (faults[])") == (
        f"sum by (kind) (rate(vllm:diffspec_faults_total{where}[$__rate_interval]))"
    )
