# SPDX-License-Identifier: Apache-2.0
"""What a launch on an NPU is told about the vLLM-Ascend it finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from diffspec.hosts.surface import TOUCH_POINTS, HostError, require_surface

(PLATFORM,) = (p for p in TOUCH_POINTS if p.name == "NPUPlatform")
PROPOSE = [p for p in TOUCH_POINTS if p.name == "AscendEagleProposer._propose"]
TABLE = (PLATFORM, *PROPOSE)


def function(parameters: tuple[str, ...]) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(parameters)}): ...", scope)
    return scope["f"]


def host(
    ascend: str | None = "0.28.0rc1", vllm: str = "0.28.0", propose: tuple[str, ...] | None = None
) -> Any:
    """An import function for a made-up pair; ``ascend`` None leaves vLLM-Ascend out."""
    new = not str(ascend).startswith(("0.23", "0.24", "0.25"))
    (row,) = (p for p in PROPOSE if ("num_speculative_tokens" in p.parameters) == new)
    eagle = SimpleNamespace(_propose=function(propose or row.parameters))
    modules = {
        "vllm": SimpleNamespace(__version__=vllm),
        "vllm_ascend": SimpleNamespace(),
        "vllm_ascend._version": SimpleNamespace(__version__=ascend),
        PLATFORM.module: SimpleNamespace(
            NPUPlatform=SimpleNamespace(device_type="npu", check_and_update_config=print)
        ),
        PROPOSE[0].module: SimpleNamespace(AscendEagleProposer=eagle),
    }

    def import_module(name: str) -> Any:
        if ascend is None and name.startswith("vllm_ascend"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return modules[name]

    return import_module


TESTED = (
    "Tested: vLLM-Ascend 0.25.1rc1 with vLLM 0.25.1, vLLM-Ascend 0.28.0rc1 with vLLM 0.28.0 (by "
    "their source). Remove draft_context_policy or install a tested version."
)


def told(**change: Any) -> str:
    with pytest.raises(HostError) as caught:
        require_surface(platform="npu", table=TABLE, import_module=host(**change))
    return str(caught.value)


@pytest.mark.parametrize(
    ("ascend", "vllm"),
    [
        ("0.25.1rc1", "0.25.1"),
        ("0.28.0rc1", "0.28.0"),
        # The build that was qualified elsewhere: its own pairing, accepted by its surface.
        ("0.25.1rc1", "0.28.1rc1.dev319+g762f85b"),
    ],
)
def test_accepted_pairs(ascend: str, vllm: str) -> None:
    require_surface(platform="npu", table=TABLE, import_module=host(ascend, vllm))


@pytest.mark.parametrize(
    ("ascend", "vllm"),
    [("0.25.1rc1", "0.28.0"), ("0.28.0rc1", "0.25.1"), ("0.28.0rc1", "0.25.2.dev3")],
)
def test_pairs_that_were_not_made_for_each_other(ascend: str, vllm: str) -> None:
    text = told(ascend=ascend, vllm=vllm)
    assert f"not compatible: vLLM-Ascend {ascend} is not made for vLLM {vllm}. {TESTED}" in text


def test_one_that_is_absent() -> None:
    assert told(ascend=None) == (
        "vllm-diffspec: host vLLM-Ascend (absent) with vLLM 0.28.0 is not compatible: vllm_ascend "
        "cannot be imported (ModuleNotFoundError: No module named 'vllm_ascend'). " + TESTED
    )


@pytest.mark.parametrize("version", ["0.23.0", "0.24.0rc1", "0.30.0rc2", "1.0.0", "dev"])
def test_one_that_is_too_old_or_too_new(version: str) -> None:
    assert told(ascend=version) == (
        f"vllm-diffspec: host vLLM-Ascend {version} with vLLM 0.28.0 is not compatible: only "
        "0.25.x or 0.28.x of vLLM-Ascend is supported. " + TESTED
    )


@pytest.mark.parametrize("version", ["0.24.0", "0.30.0"])
def test_a_vllm_it_is_not_made_for(version: str) -> None:
    assert f"vLLM {version} is not compatible: only 0.25.x or 0.28.x of vLLM is" in told(
        vllm=version
    )


@pytest.mark.parametrize("removed", ["num_speculative_tokens", "scheduler_output"])
def test_one_that_lacks_a_touch_point(removed: str) -> None:
    (row,) = (p for p in PROPOSE if "num_speculative_tokens" in p.parameters)
    kept = tuple(name for name in row.parameters if name != removed)
    text = told(propose=kept)
    assert text.startswith("vllm-diffspec: host vLLM-Ascend 0.28.0rc1 with vLLM 0.28.0 is not")
    assert f"AscendEagleProposer._propose lacks parameter '{removed}' (expected self, " in text
    assert text.endswith(TESTED)


def test_the_earlier_release_has_another_call() -> None:
    (row,) = (p for p in PROPOSE if "num_speculative_tokens" in p.parameters)
    text = told(ascend="0.25.1rc1", vllm="0.25.1", propose=row.parameters)
    assert "_propose needs an unknown parameter 'num_speculative_tokens'" in text


def test_nothing_of_it_is_looked_for_on_other_devices() -> None:
    for platform in (None, "cpu", "cuda"):
        require_surface(platform=platform, table=TABLE, import_module=host(ascend=None))
