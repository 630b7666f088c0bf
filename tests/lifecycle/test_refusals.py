# SPDX-License-Identifier: Apache-2.0
"""What an operator gets wrong: which command says so, and in which words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from diffspec.environment import EXTENSION_ID
from tests.lifecycle.manager import HOST_VERSION, SPECULATIVE, Manager

pytestmark = pytest.mark.e2e

COMMAND = ("vllm", "serve", "/model")
FLAG = "--speculative-config"


def check(manager: Manager) -> tuple[list[str], str]:
    """States and evidence, the latter as one text."""
    found = manager.json("extension", "check", EXTENSION_ID)
    return found["states"], "; ".join(found["evidence"])


def test_without_the_host_nothing_is_launched(hostless: Manager) -> None:
    manager = hostless.configured()  # `enable` does not look at hosts
    states, evidence = check(manager)
    assert states == ["installed", "discovered", "configured", "enabled", "degraded"]
    assert "host version is unavailable" in evidence
    message = manager.refused("run", "--dry-run", "--", *COMMAND)
    assert "refusing to launch unverified trusted in-process extension" in message
    assert f"'{EXTENSION_ID}'" in message
    assert "host version is unavailable" in message


@pytest.mark.parametrize("version", ["0.25.1rc1", "0.28.0rc1"])
def test_hosts_that_are_taken(hostless: Manager, version: str) -> None:
    manager = hostless.with_host(version).configured()
    assert "compatible" in check(manager)[0]
    assert manager.dry_run(*COMMAND)["command"][-2] == FLAG


@pytest.mark.parametrize("version", ["0.27.0", "0.30.0rc2"])
def test_a_host_out_of_range_is_named_with_the_range(hostless: Manager, version: str) -> None:
    manager = hostless.with_host(version).configured()
    states, evidence = check(manager)
    assert states == ["installed", "discovered", "incompatible", "enabled"]
    wanted = manager.json("extension", "inspect", EXTENSION_ID)["host"]["version_range"]
    assert f"host version {version} is outside {wanted}" in evidence
    message = manager.refused("run", "--dry-run", "--", *COMMAND)
    assert f"refusing to launch incompatible extension '{EXTENSION_ID}'" in message
    assert f"host version {version} is outside {wanted}" in message


def test_a_host_version_in_the_configuration_is_believed(hostless: Manager) -> None:
    """The way to launch where DiffSpec runs on a host the Manager does not look at."""
    options = {"speculative_config": SPECULATIVE}
    document = {"host_version": HOST_VERSION, "launch_options": options}
    for machine in (hostless, hostless.with_host("0.24.0")):
        manager = machine.configured(document)
        assert "compatible" in check(manager)[0]
        assert manager.dry_run(*COMMAND)["command"][-2] == FLAG
    outside = hostless.with_host(HOST_VERSION).configured({**document, "host_version": "0.24.0"})
    assert "outside" in outside.refused("run", "--dry-run", "--", *COMMAND)


def test_wrong_nesting_is_never_reported(manager: Manager) -> None:
    """The server would start without speculation; our own command says so instead."""
    manager.configured({"speculative_config": SPECULATIVE})
    assert "configured" in check(manager)[0]
    assert manager.dry_run(*COMMAND)["command"] == list(COMMAND)
    done = subprocess.run(
        [manager.environment.bin / "diffspec", "config", "validate", "diffspec.json"],
        cwd=manager.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "launch_options" in done.stdout


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"launch_options": {"max_num_seqs": 4}},
            "unsupported vLLM launch_options: ['max_num_seqs']",
        ),
        ({"launch_options": {"speculative_config": "eagle3"}}, "speculative_config"),
        ({"launch_options": []}, "launch_options"),
        (
            {"environment": {"OTHER": "1"}},
            "environment overrides must be declared by the manifest: ['OTHER']",
        ),
    ],
)
def test_bad_configurations_show_at_the_launch(
    manager: Manager, document: object, message: str
) -> None:
    manager.configured(document)
    assert "configured" in check(manager)[0]
    for command in (
        ("extension", "plan", EXTENSION_ID),
        ("extension", "env"),
        ("run", "--dry-run", "--", *COMMAND),
    ):
        assert message in manager.refused(*command)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"launch_options": ', "Expecting value: line 1 column 20 (char 19)"),
        ("[]", "extension configuration file must contain an object"),
        (None, "[Errno 2] No such file or directory: 'missing.json'"),
    ],
)
def test_files_that_cannot_be_stored(manager: Manager, text: str | None, message: str) -> None:
    name = "missing.json"
    if text is not None:
        name = "bad.json"
        (manager.home / name).write_text(text)
    assert manager.refused("extension", "configure", EXTENSION_ID, "--file", name) == message
    assert not manager.state.exists()


def test_a_damaged_state_file_stops_every_command(manager: Manager) -> None:
    manager.configured()
    manager.state.write_text("{")
    for command in (("extension", "list"), ("run", "--dry-run"), ("extension", "env")):
        assert "line 1 column 2" in manager.refused(*command)


@pytest.mark.parametrize(
    "own",
    [
        (FLAG, json.dumps(SPECULATIVE, indent=1)),
        (f"{FLAG}={json.dumps(dict(reversed(SPECULATIVE.items())))}",),
        (FLAG, json.dumps({**SPECULATIVE, "num_speculative_tokens": 3.0})),
    ],
)
def test_the_same_option_typed_by_hand_is_kept_as_typed(
    manager: Manager, own: tuple[str, ...]
) -> None:
    manager.configured()
    typed = [*COMMAND, *own, "--port", "8001"]
    assert manager.dry_run(*typed)["command"] == typed


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            (FLAG, json.dumps({**SPECULATIVE, "num_speculative_tokens": 5})),
            f"conflicts with {FLAG}",
        ),
        ((f"{FLAG}={{}}",), f"conflicts with {FLAG}"),
        ((FLAG, "eagle3"), "Expecting value: line 1 column 1 (char 0)"),
        ((FLAG,), f"{FLAG} requires a JSON object"),
    ],
)
def test_another_option_typed_by_hand_is_refused(
    manager: Manager, own: tuple[str, ...], message: str
) -> None:
    manager.configured()
    assert message in manager.refused("run", "--dry-run", "--", *COMMAND, *own)


@pytest.mark.parametrize(
    "own",
    [
        ("-sc", '{"method":"ngram"}'),
        ("--speculative_config", '{"method":"ngram"}'),
        (f"{FLAG}.method", "ngram"),
        ("--spec-method", "ngram"),
    ],
)
def test_other_spellings_go_unseen(manager: Manager, own: tuple[str, ...]) -> None:
    """Both reach vLLM; `diffspec doctor -- COMMAND` warns of them."""
    manager.configured()
    command = manager.dry_run(*COMMAND, *own)["command"]
    assert command[:-2] == [*COMMAND, *own]
    assert command[-2] == FLAG


def test_only_the_first_option_is_looked_at(manager: Manager) -> None:
    manager.configured()
    typed = [*COMMAND, FLAG, json.dumps(SPECULATIVE), FLAG, '{"method":"ngram"}']
    assert manager.dry_run(*typed)["command"] == typed


def test_the_option_is_put_at_the_end_of_any_command(manager: Manager) -> None:
    manager.configured()
    for typed in (("bash", "-c", "true"), ("vllm", "bench", "serve"), ("vllm",)):
        assert manager.dry_run(*typed)["command"][: len(typed) + 1] == [*typed, FLAG]
    assert manager.json("run", "--dry-run")["command"][:2] == ["vllm", FLAG]


def test_an_unknown_extension(manager: Manager) -> None:
    for verb in ("validate", "enable", "check"):
        message = manager.refused("extension", verb, "org.nope")
        assert message == "enabled Bundles are not installed: ['org.nope']"


def test_no_command_and_wrong_ones(manager: Manager, tmp_path: Path) -> None:
    for words in (("extension",), ("extension", "disable"), ("launch",), ("run", "--now")):
        assert manager.refused(*words)
    assert not list(tmp_path.glob("manager/*"))
