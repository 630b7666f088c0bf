# SPDX-License-Identifier: Apache-2.0
"""The catalogue entry claims what the records say of this release, within the format's rules."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from diffspec import __version__
from diffspec.evidence.catalog import catalog, catalog_problems
from diffspec.evidence.records import CHECKOUT, Record, read, statements

COMMIT = "0123456789abcdef" * 2 + "01234567"
ENTRY_KEYS = [
    *("id", "name", "repository", "source", "maturity", "availability", "installation"),
    *("enablement", "runtime_requirements", "functional_qualification", "tested_effects"),
    *("expected_scenarios", "recommendation", "resource_tradeoff", "conflicts", "rollback"),
]
SAGE_PAGE = "docs/evidence/sage-mate-20260904-tp4-graph.md"
Change = Callable[[dict[str, Any]], None]


def made(records: list[Record] | None = None) -> dict[str, Any]:
    records = statements() if records is None else records
    return catalog(records, repository="https://example.org/d.git", ref="main", commit=COMMIT)


def qualified() -> dict[str, Any]:
    """The catalogue if the owner's record had been made with this release."""
    sage = read(CHECKOUT / "evidence" / "sage-mate-20260904-tp4-graph.json")
    data = copy.deepcopy(dict(sage.data))
    data["subject"]["releases"] = ["0.0.9", __version__]
    return made([Record(sage.path, data, ())])


def test_the_entry_has_every_part_and_nothing_else() -> None:
    document = made()
    assert set(document) == {"schema", "generated_at", "source", "policy", "extensions"}
    assert document["schema"] == "vllm-hust.extension-catalog/v1"
    assert document["source"] == {"ref": "main", "commit": COMMIT}
    (entry,) = document["extensions"]
    assert list(entry) == ENTRY_KEYS
    assert entry["id"] == "org.vllm-hust.diffspec"
    assert catalog_problems(json.loads(json.dumps(document))) == []


def test_a_record_of_another_build_does_not_qualify_this_release() -> None:
    (entry,) = made()["extensions"]
    assert entry["maturity"] == "experimental"
    function = entry["functional_qualification"]
    assert (function["status"], function["recovery"]) == ("unverified", "unverified")
    assert f"release {__version__} has no qualification record" in function["scope"]
    assert entry["enablement"]["allowed"] is False
    assert f"release {__version__}" in entry["enablement"]["blocker"]
    assert {s["status"] for s in entry["expected_scenarios"]} == {"unverified"}


def test_a_record_of_this_release_qualifies_it() -> None:
    (entry,) = qualified()["extensions"]
    assert (entry["maturity"], entry["availability"]) == ("qualified", "available")
    assert entry["enablement"] == {"allowed": True, "blocker": None}
    assert entry["functional_qualification"]["evidence"] == [SAGE_PAGE]
    assert [s["status"] for s in entry["expected_scenarios"]] == ["verified"]


def test_only_qualifications_are_tested_effects() -> None:
    (entry,) = made()["extensions"]
    (effect,) = entry["tested_effects"]
    assert effect["status"] == "not-recommended-for-tested-cell"
    assert effect["evidence"] == [SAGE_PAGE]
    assert "another build than this release" in effect["summary"]
    assert entry["recommendation"]["level"] == "not-recommended-for-tested-cell"
    ids = [scenario["id"] for scenario in entry["expected_scenarios"]]
    assert ids == ["sage-mate-20260904-tp4-graph", "historical-ascend-910b2"]


def test_installation_names_the_manifest_as_it_is() -> None:
    (entry,) = made()["extensions"]
    installation = entry["installation"]
    manifest = CHECKOUT / installation["manifest_path"]
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert installation["manifest_sha256"] == f"sha256:{digest}"
    assert installation["entrypoint"] == {"group": "vllm.general_plugins", "name": "diffspec"}
    assert installation["commit"] == COMMIT


def test_requirements_are_those_of_the_compatible_lane() -> None:
    (entry,) = made()["extensions"]
    needs = entry["runtime_requirements"]
    assert needs["models"] == ["Qwen3.8-27B"]
    assert needs["topologies"] == ["TP4 PP1"]
    assert needs["core"] == "vLLM-HUST 0.28.1rc1.dev319 762f85b3"
    assert needs["ascend"] == "vLLM-Ascend-HUST 0.25.1rc1 4e57439e"
    assert needs["environment"] == {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    (draft,) = needs["additional_models"]
    assert draft["model"] == "VirVen/Qwen3.5-27B-EAGLE3-v2"
    assert draft["sha256"].startswith("a57cefc45874")
    # Whose hash it is the source does not say, and the entry must not hide that.
    (effect,) = entry["tested_effects"]
    assert "taken here to be the draft's" in effect["summary"]


def test_every_page_that_is_named_exists() -> None:
    (entry,) = made()["extensions"]
    parts = [entry["functional_qualification"], *entry["tested_effects"]]
    named = {page for part in parts + entry["expected_scenarios"] for page in part["evidence"]}
    assert named
    assert [page for page in named if not (CHECKOUT / page).is_file()] == []


def test_without_records_nothing_is_claimed() -> None:
    (entry,) = made([])["extensions"]
    assert entry["tested_effects"] == []
    assert entry["enablement"]["allowed"] is False


@pytest.mark.parametrize("commit", ["main", COMMIT[:39], COMMIT.upper().replace("0", "A"), ""])
def test_a_commit_has_forty_digits(commit: str) -> None:
    with pytest.raises(ValueError, match="40 hexadecimal digits"):
        catalog(statements(), repository="r", ref="main", commit=commit)


def entry_edit(*path: str | int, value: object) -> Change:
    """A change of one place of the entry; the value ``...`` removes it."""

    def change(document: Any) -> None:
        place = document["extensions"][0]
        *way, last = path
        for step in way:
            place = place[step]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return change


def second_entry(new_id: str) -> Change:
    def change(document: Any) -> None:
        document["extensions"].append(copy.deepcopy(document["extensions"][0]) | {"id": new_id})

    return change


FUNCTION = "functional_qualification"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((entry_edit(key, value=...), f"'{key}' is a required property") for key in ENTRY_KEYS),
        (entry_edit("surprise", value=1), "'surprise' was unexpected"),
        (entry_edit("source", "tag", value="v1"), "'tag' was unexpected"),
        (entry_edit("source", "commit", value=COMMIT[:7]), "40 hexadecimal digits"),
        (entry_edit("installation", "commit", value="HEAD"), "40 hexadecimal digits"),
        (entry_edit("installation", "manifest_sha256", value="0" * 64), "expected sha256:"),
        (entry_edit("installation", "type", value="wheel"), "'python-source' was expected"),
        (entry_edit("installation", value=None), "a qualified extension can be installed"),
        (entry_edit("availability", value="external"), "a qualified extension is available"),
        (entry_edit("enablement", "allowed", value=False), "a qualified extension may be enabled"),
        (entry_edit(FUNCTION, "status", value="not-applicable"), "a qualified extension passed"),
        (entry_edit(FUNCTION, "recovery", value="failed"), "a qualified extension recovers"),
        (entry_edit(FUNCTION, "evidence", value=[]), "what passed needs evidence"),
        (entry_edit("maturity", value="preview"), "may not be enabled"),
        (entry_edit("maturity", value="stable"), "'stable' is not one of"),
        (
            entry_edit("tested_effects", 0, "status", value="not-beneficial-in-tested-cell"),
            "'not-beneficial-in-tested-cell' is not one of",
        ),
        (entry_edit("tested_effects", 0, "evidence", value=[]), "$.extensions[0].tested_effects"),
        (entry_edit("expected_scenarios", 0, "status", value="hoped"), "'hoped' is not one of"),
        (entry_edit("rollback", "steps", value=[]), "$.extensions[0].rollback.steps"),
        (entry_edit("rollback", "steps", value=["a", "a"]), "non-unique elements"),
        (second_entry("org.vllm-hust.diffspec"), "is given 2 times"),
        (second_entry("org.vllm-hust.aaa"), "$.extensions: sorted by id, not"),
        (lambda document: document["extensions"].clear(), "$.extensions"),
        (lambda document: document["policy"].pop("preview"), "'preview' is a required property"),
    ],
)
def test_what_the_format_refuses(change: Change, message: str) -> None:
    document = qualified()
    assert catalog_problems(document) == []
    change(document)
    assert message in "\n".join(catalog_problems(document))


@pytest.mark.parametrize("word", ["unverified", "failed"])
@pytest.mark.parametrize("part", ["status", "recovery"])
def test_what_failed_or_is_unverified_may_not_be_enabled(part: str, word: str) -> None:
    document = qualified()
    (entry,) = document["extensions"]
    entry["maturity"] = "experimental"
    assert catalog_problems(document) == []
    entry[FUNCTION][part] = word
    assert "may not be enabled" in "\n".join(catalog_problems(document))
    entry["enablement"] = {"allowed": False, "blocker": "not verified"}
    assert catalog_problems(document) == []
