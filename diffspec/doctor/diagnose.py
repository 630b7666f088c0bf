# SPDX-License-Identifier: Apache-2.0
"""Puts the checks together: what is asked for decides which of them run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffspec.configuration.checkpoint import Checkpoint
from diffspec.configuration.lengths import served_length
from diffspec.configuration.speculative import Speculative
from diffspec.doctor import (
    command,
    config_file,
    folders,
    host,
    lanes,
    manager,
    pair,
    plugins,
    speculative,
)
from diffspec.doctor.arguments import Command, CommandError
from diffspec.doctor.findings import Finding, Report, error, warning
from diffspec.doctor.manager_state import Launch, read_state, speculative_config
from diffspec.doctor.surroundings import Platform, Surroundings
from diffspec.environment import EXTENSION_ID
from diffspec.hosts.launch import LaunchFacts
from diffspec.hosts.source import HostSource


@dataclass(frozen=True)
class Question:
    """What the doctor is asked; everything is optional.

    ``platform`` None takes what is installed here. ``command`` is a command line in words.
    """

    target: Path | None = None
    draft: Path | None = None
    config_file: Path | None = None
    command: Sequence[str] = ()
    platform: Platform | None = None
    deep: bool = False


def diagnose(question: Question, around: Surroundings | None = None) -> Report:
    """Run every check that applies: always host, plugins and Manager, and what is asked for."""
    around = around or Surroundings()
    taken = command.unwrap(question.command) if question.command else None
    if taken is not None:
        around = replace(around, environ=_changed(around.environ, taken.environment))
    here = around.platform()
    platform = question.platform or here
    state = read_state(around.environ)
    root = around.package("vllm")
    source = HostSource(root) if root is not None else None

    document: dict[str, Any] | None = None
    of_file: list[Finding] = []
    if question.config_file is not None:
        document, of_file = config_file.check(question.config_file, around.environ)
    by, inside = (taken.manager, taken.inside) if taken else (None, {})
    direct = taken is not None and by is None and question.config_file is None
    launch = Launch(by, question.config_file, document, direct)
    # What vLLM's process will have; the Manager itself has that of `around`.
    environ = _changed(launch.environment(around.environ, state), inside)

    elsewhere = platform != here
    if platform is not None and elsewhere:
        found = host.elsewhere(platform, here)
    else:
        found = host.check(around, platform, deep=question.deep)
        found += plugins.check(replace(around, environ=environ))
        found += manager.check(around, state, launch)
    found += of_file
    stored = None
    if EXTENSION_ID in launch.enabled(state):
        stored = speculative_config(launch.configuration(state))

    reading = None
    if taken is not None:
        hosts = {} if elsewhere else around.hosts()
        reading = command.read(taken, stored, hosts, managed=launch.managed)
        found += reading.findings
    given = reading.speculative if reading else speculative_config(document)
    run = reading.command if reading else None
    found += _launch(question, given, run, platform, source, environ)
    return Report.of(_once(found))


def _changed(environ: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**environ, **changes}.items() if value is not None}


def _launch(
    question: Question,
    given: Mapping[str, Any] | None,
    run: Command | None,
    platform: Platform | None,
    source: HostSource | None,
    environ: Mapping[str, str],
) -> list[Finding]:
    """The pair, the flags and the object together: rows of refusals see all of them at once."""
    config = Speculative.of(given) if given is not None else None
    active = config.active if config else run is None or question.draft is not None
    found: list[Finding] = []
    served_model = (run.model, run.text("--revision")) if run else (None, None)
    target = folders.read("target", question.target, *served_model, environ, found)
    drafting = (config.model, config.revision) if config else (None, None)
    draft = folders.read("draft", question.draft, *drafting, environ, found)
    # Without DiffSpec a target alone is no matter of ours.
    seen = target if active or draft is not None else None
    judged = pair.judge(seen, draft, platform, source)
    window = config.max_model_len if config else None
    if window is None:
        window = judged.trained_window
    served = run.integer("--max-model-len") if run else None
    if served is None and target is not None:
        served = served_length(target.text)

    try:
        known = _facts(config, run, judged, target, platform, environ)
        found += judged.findings
        soft = () if run is not None else ("multimodal",)
        area = "command" if run is not None else "config"
        found += lanes.refused(known, platform, area, softened=soft) if active else []
        if draft is not None:
            found += speculative.window_findings(window, served, config)
        amiss = any(f.level == "error" and f.area == "pair" for f in found)
        if target is not None and draft is not None and draft.tensors is not None and not amiss:
            found.append(pair.summary(target, draft))
        if config is not None and run is not None:
            found += speculative.judge(config, window, source)
        elif config is not None:
            found += speculative.unknown_keys(config, source, "config")
        if run is not None and active:
            depth = config.depth if config else None
            known = replace(known, depth=depth)
            found += _by_platform(run, known, platform, environ, served, window)
    except CommandError as failure:
        found.append(error("command.parse", str(failure), "correct the command"))
    return found


def _by_platform(
    run: Command,
    known: LaunchFacts,
    platform: Platform | None,
    environ: Mapping[str, str],
    served: int | None,
    window: int | None,
) -> list[Finding]:
    """What a platform has to say of a command, beside the list of refusals."""
    if platform == "ascend":
        return lanes.ascend(known, environ, served=served, window=window)
    if (method := run.text("--quantization")) is None:
        return []
    text = f"--quantization {method}: nobody has tried DiffSpec with quantised weights"
    advice = "compare the output with the target's own before relying on it"
    return [warning("command.quantisation", text, advice)]


def _facts(
    config: Speculative | None,
    run: Command | None,
    judged: pair.Pair,
    target: Checkpoint | None,
    platform: Platform | None,
    environ: Mapping[str, str],
) -> LaunchFacts:
    changes: dict[str, Any] = {}
    if run is not None:
        flags = command.facts(run, platform, environ)
        names = LaunchFacts.__dataclass_fields__
        changes = {n: getattr(flags, n) for n in names if getattr(flags, n) is not None}
        if run.switch("--language-model-only"):
            changes["multimodal"] = False
        if command.dtype_of(run) is None and target is not None:
            changes["model_dtype"] = _own_dtype(target)
    if config is not None:
        changes |= config.facts()
        if run is None:
            # Ranks are not known without a command, so neither is whether the two agree.
            changes.pop("draft_tensor_parallel_size", None)
    return replace(judged.facts, **changes)


def _own_dtype(target: Checkpoint) -> str | None:
    # vLLM replaces float32 by a half type of its own choice where no type is asked for.
    dtype = target.dtype()
    return None if dtype == "float32" else dtype


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Without findings that say what an earlier one said, in whatever area."""
    said: set[tuple[str, str]] = set()
    in_files: list[str] = []
    kept = []
    for finding in findings:
        if (finding.level, finding.what) in said:
            continue
        if finding.level == "error" and any(finding.what in text for text in in_files):
            continue  # of a configuration file, whose name stands before the same words
        said.add((finding.level, finding.what))
        if finding.id == "config.content":
            in_files.append(finding.what)
        kept.append(finding)
    return kept
