# SPDX-License-Identifier: Apache-2.0
"""Imports point one way, and the light parts of the package stay light."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import diffspec

ROOT = Path(diffspec.__file__).parent
MODULES = {
    ".".join(("diffspec", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(ROOT.rglob("*.py"))
}
#: A part may import parts further to the left, and itself.
ORDER = (
    ("environment", "keys", "metrics", "schemas", "settings", "telemetry"),
    ("compact_kv", "adaptive_depth"),
    ("retrieval",),  # scores the pages compact_kv describes
    ("proposer",),
    ("hosts",),
    ("configuration",),
    ("evidence",),  # reads its records with configuration.document
    ("doctor",),
    ("testbed",),
    ("cli", "plugin"),
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
#: These load with every vLLM process or in tools that have no torch.
LIGHT = ("environment", "keys", "metrics", "settings", "telemetry", "plugin")
LIGHT_HOSTS = (
    *("places", "launch", "releases", "snapshot", "source", "surface", "unsupported", "verdicts"),
    *(
        "ascend_drafter_points",
        "ascend_lane",
        "ascend_points",
        "ascend_unsupported",
        "drafter_points",
        "vllm_points",
    ),
    *("touch_point", "touch_points"),
)
#: The adapter to vLLM-Ascend; nobody else may need its packages.
ASCEND = "diffspec.hosts.ascend."


def part_of(module: str) -> str | None:
    """The top-level part a module belongs to; None for the package itself."""
    return module.split(".")[1] if "." in module else None


def imports_of(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """Absolute names of the modules a file imports, with ``from x import y`` as x and x.y."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_part_has_a_place() -> None:
    assert len(MODULES) > 10
    assert {part_of(m) for m in MODULES} - {None} <= set(RANK)


def test_imports_point_one_way() -> None:
    wrong = []
    for module, path in MODULES.items():
        here = part_of(module)
        for name in imports_of(path):
            there = part_of(name) if name.startswith("diffspec.") else None
            if here is None and there is not None:
                wrong.append(f"{module} imports {name}")
            if here is None or there is None or here == there or there not in RANK:
                continue
            # Parts of the lowest rank are one unit; elsewhere equal rank means unrelated.
            lower = RANK[there] < RANK[here] or RANK[there] == RANK[here] == 0
            if not lower:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_only_hosts_and_tools_import_the_host() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if part_of(module) not in ("hosts", "cli", "testbed")
        for name in imports_of(path)
        if name.split(".")[0] in ("vllm", "vllm_ascend")
    ]
    assert wrong == []


def test_light_modules_import_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "vllm_ascend", "transformers", "pydantic", "numpy")
    heavy += ("prometheus_client",)
    light = [f"diffspec.{name}" for name in LIGHT]
    light += [f"diffspec.hosts.{name}" for name in LIGHT_HOSTS]
    wrong = [
        f"{module} imports {name}"
        for module in ("diffspec", *light)
        for name in imports_of(MODULES[module])
        if name.split(".")[0] in heavy
    ]
    assert wrong == []


def test_the_entry_point_imports_hosts_only_when_called() -> None:
    names = set(imports_of(MODULES["diffspec.plugin"], top_level_only=True))
    assert not any(name.startswith("diffspec.hosts") for name in names)


def test_no_device_imports_the_worker_of_another() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        for name in imports_of(path)
        if name in ("diffspec.hosts.vllm.cpu_worker", "diffspec.hosts.vllm.gpu_worker")
        or (name.startswith(ASCEND) and not module.startswith(ASCEND))
    ]
    assert wrong == [], "workers are named in WORKERS, and vLLM imports the one it is given"
    host = "vllm.v1.worker.cpu_worker"
    assert host not in set(imports_of(MODULES["diffspec.hosts.vllm.gpu_worker"]))


def test_only_the_adapter_names_the_packages_of_ascend_machines() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if not module.startswith(ASCEND)
        for name in imports_of(path)
        if name.split(".")[0] in ("vllm_ascend", "torch_npu", "torch.npu")
    ]
    assert wrong == []


def test_every_file_names_its_licence() -> None:
    first = "# SPDX-License-Identifier: Apache-2.0"
    files = [*MODULES.values(), *Path(__file__).parents[1].rglob("*.py")]
    lacking = [str(f) for f in files if f.read_text(encoding="utf-8").splitlines()[:1] != [first]]
    assert lacking == []
