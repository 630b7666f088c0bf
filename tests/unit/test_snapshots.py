# SPDX-License-Identifier: Apache-2.0
"""The tables of touch points against the real files of every release, as they were recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from diffspec.hosts import releases
from diffspec.hosts.releases import RELEASES, Release
from diffspec.hosts.snapshot import (
    FOLDER,
    StaleSnapshotError,
    asked_of,
    load,
    path_of,
    record,
)
from diffspec.hosts.source import HostSource
from diffspec.hosts.touch_points import TOUCH_POINTS, TouchPoint
from diffspec.hosts.verdicts import columns, judge, to_json

ACCEPTED = [release for release in RELEASES if release.standing != "next"]
CASES = [(release, point) for release in ACCEPTED for point in asked_of(release)]


@pytest.mark.parametrize(
    ("release", "point"), CASES, ids=lambda v: v.title if isinstance(v, Release) else v.name
)
def test_each_touch_point_fits_each_accepted_release(release: Release, point: TouchPoint) -> None:
    assert [found.text for found in load(release).mismatches([point])] == []


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.title)
def test_a_snapshot_holds_what_the_table_asks_and_no_more(release: Release) -> None:
    asked = asked_of(release)
    known = load(release).points
    assert list(known) == sorted({point.target for point in asked})
    for target, entry in known.items():
        wanted = {n for p in asked if p.target == target for n in p.attributes}
        assert "absent" in entry or {*entry.get("has", ()), *entry.get("lacks", ())} == wanted


def test_there_is_a_snapshot_for_every_release_and_no_other() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {path_of(r).name for r in RELEASES}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 100_000


def test_next_releases_are_judged_and_may_differ() -> None:
    found = {c.snapshot.release.title: c for c in columns() if not c.must_fit}
    assert {"vLLM 0.30.0", "vLLM 0.32.0", "vLLM-Ascend 0.30.0rc2"} == set(found)
    # It dropped this field; by hand from its source.
    told = [v.text for v in found["vLLM 0.30.0"].wrong.values()]
    assert told == ["CommonAttentionMetadata lacks _seq_lens_cpu"]


def test_the_recorded_release_is_the_installed_one() -> None:
    """From the files that are installed, not from the package the snapshot was made of."""
    vllm = pytest.importorskip("vllm")
    (release,) = (r for r in RELEASES if r.host == "vllm" and r.version == vllm.__version__)
    source = HostSource(Path(vllm.__file__).parent)
    assert record(release, source, archive="", sha256="").points == load(release).points


MADE = Release("vllm", "9.9.9", "source", ("cpu",))


def points(tmp_path: Path, body: str, *table: TouchPoint) -> Any:
    root = tmp_path / "vllm"
    root.mkdir(exist_ok=True)
    (root / "__init__.py").write_text("")
    (root / "a.py").write_text(body)
    return record(MADE, HostSource(root), archive="a.tar.gz", sha256="0", table=table)


ACT = TouchPoint("vllm.a:Thing.act", "bound", "worker", "", "", parameters=("self", "x"))
THING = TouchPoint("vllm.a:Thing", "read", "worker", "", "", attributes=("kept", "gone"))
BODY = """class Thing:
    kept = 1
    def act(self, x, *rest, y=print("never run"), **more): ...
"""


def test_signatures_and_names_are_recorded(tmp_path: Path) -> None:
    taken = points(tmp_path, BODY, ACT, THING, replace(ACT, target="vllm.b:Other"))
    assert taken.points == {
        "vllm.a:Thing.act": {"signature": "(self, x, *rest, y=..., **more)"},
        "vllm.a:Thing": {"has": ["kept"], "lacks": ["gone"]},
        "vllm.b:Other": {
            "absent": "module vllm.b cannot be imported (ModuleNotFoundError: No module named "
            "'vllm.b')"
        },
    }


@pytest.mark.parametrize(
    ("signature", "told"),
    [
        ("(self, x)", []),
        ("(self, x, /, y=..., *, z=...)", []),
        ("(self, *, x)", []),
        ("(self, y)", ["Thing.act lacks parameter 'x' (expected self, x)"]),
        ("(x, self)", ["Thing.act takes its parameters in another order (expected self, x)"]),
        ("(self, x, y)", ["Thing.act needs an unknown parameter 'y' (expected self, x)"]),
        ("(self, x, *, y)", ["Thing.act needs an unknown parameter 'y' (expected self, x)"]),
        (None, ["Thing.act is not callable"]),
    ],
)
def test_a_recorded_signature_is_judged(
    tmp_path: Path, signature: str | None, told: list[str]
) -> None:
    taken = points(tmp_path, BODY, ACT)
    changed = replace(taken, points={ACT.target: {"signature": signature}})
    assert [found.text for found in changed.mismatches([ACT])] == told


def test_absent_and_differing_points_are_told_apart(tmp_path: Path) -> None:
    gone = replace(ACT, target="vllm.a:Thing.other")
    column = judge(points(tmp_path, BODY, ACT, THING, gone), (ACT, THING, gone))
    assert {target: v.state for target, v in column.verdicts.items()} == {
        ACT.target: "ok",
        THING.target: "differs",
        gone.target: "absent",
    }
    assert column.verdicts[THING.target].text == "Thing lacks gone"
    assert column.verdicts[gone.target].text == "Thing has no other"


def test_a_table_that_asks_for_more_than_was_recorded_is_not_passed(tmp_path: Path) -> None:
    taken = points(tmp_path, BODY, ACT, THING)
    for more in (
        replace(ACT, target="vllm.a:Thing.more"),
        replace(THING, attributes=("kept", "more")),
        replace(THING, parameters=("self",)),
    ):
        with pytest.raises(StaleSnapshotError, match="diffspec surface refresh"):
            taken.mismatches([more])


def test_a_snapshot_survives_its_file(tmp_path: Path) -> None:
    taken = points(tmp_path, BODY, ACT, THING)
    path_of(MADE, tmp_path).write_text(taken.to_json())
    assert load(MADE, tmp_path) == taken
    with pytest.raises(StaleSnapshotError, match="No such file"):
        load(replace(MADE, version="9.9.8"), tmp_path)
    path_of(MADE, tmp_path).write_text(taken.to_json().replace("9.9.9", "9.9.7"))
    with pytest.raises(StaleSnapshotError, match=r"9\.9\.7"):
        load(MADE, tmp_path)


def test_a_row_for_some_releases_is_judged_on_these_alone() -> None:
    ascend = {r.version: r for r in RELEASES if r.host == "vllm-ascend"}
    name = "AscendEagleProposer._propose"
    for version, release in ascend.items():
        (row,) = (p for p in asked_of(release) if p.name == name)
        leads = "num_speculative_tokens" in row.parameters
        # Read from the sources by hand: the argument came with 0.28.
        assert leads == (Version(version) >= Version("0.28.0rc1"))
        # And the rows are not interchangeable.
        (other,) = {p for p in TOUCH_POINTS if p.name == name} - {row}
        assert len(load(release).mismatches([other])) == 1


def test_what_is_accepted_on_each_device() -> None:
    assert releases.accepted("vllm", "cpu") == releases.accepted("vllm", "cuda") == ((0, 28),)
    assert releases.accepted("vllm", "npu") == ((0, 25), (0, 28))
    assert releases.accepted("vllm-ascend", "npu") == ((0, 25), (0, 28))
    assert releases.hosts_of("npu") == ("vllm", "vllm-ascend")
    assert releases.hosts_of("cpu") == releases.hosts_of(None) == ("vllm",)
    made_for = {r.version: r.beside for r in RELEASES if r.host == "vllm-ascend"}
    assert made_for == {"0.25.1rc1": "0.25.1", "0.28.0rc1": "0.28.0", "0.30.0rc2": "0.30.0"}


def test_the_table_as_json() -> None:
    document = to_json(columns("vllm-ascend"))
    assert [r["version"] for r in document["releases"]] == ["0.25.1rc1", "0.28.0rc1", "0.30.0rc2"]
    first, second, *_ = to_json(columns("vllm"))["releases"]
    worker = "vllm.v1.worker.cpu_worker:CPUWorker.init_device"
    assert first["touch_points"][worker] == {"state": "not used"}
    assert second["touch_points"][worker] == {"state": "ok"}
