# SPDX-License-Identifier: Apache-2.0
"""A vLLM server's command line, read as vLLM 0.28 reads it, without vLLM.

vLLM's parser takes dashes and underscores alike, collects dotted options such as
``--speculative-config.method eagle3`` into one object that it appends at the end, and puts what a
``--config`` file says before what is typed. The last value of an option counts.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SPECULATIVE = "--speculative-config"

_SHORT = {
    "-sc": SPECULATIVE,
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-q": "--quantization",
    "-ac": "--attention-config",
    "-cc": "--compilation-config",
}
#: Options without a value, so that the word after one of them is not taken for it.
_SWITCHES = frozenset(
    f"--{name}"
    for name in (
        "async-scheduling",
        "disable-log-requests",
        "disable-log-stats",
        "enable-auto-tool-choice",
        "enable-chunked-prefill",
        "enable-expert-parallel",
        "enable-lora",
        "enable-prefix-caching",
        "enable-prompt-embeds",
        "enable-sleep-mode",
        "enforce-eager",
        "fail-on-environ-validation",
        "language-model-only",
        "trust-remote-code",
    )
)
_MULTIPLIERS = {
    **{letter: 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    **{letter: 1024 ** (power + 1) for power, letter in enumerate("KMGT")},
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


class CommandError(Exception):
    """The command line is not one that starts a vLLM server, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option as given: ``name`` in its long form with dashes, ``path`` the dotted rest,
    ``spelling`` as typed, ``source`` the ``--config`` file it comes from or empty."""

    name: str
    value: str | None
    spelling: str
    path: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Command:
    """A server's command line. ``options`` are in the order in which vLLM's parser sees them."""

    words: tuple[str, ...]
    model: str | None
    options: tuple[Option, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    config_file: str | None = None

    def all(self, name: str) -> list[Option]:
        """Every occurrence of an option, dotted ones included."""
        return [option for option in self.options if option.name == name]

    def text(self, name: str) -> str | None:
        """The last value of an option, or None."""
        values = [o.value for o in self.all(name) if not o.path and o.value is not None]
        return values[-1] if values else None

    def integer(self, name: str) -> int | None:
        """The last value as an integer, with vLLM's suffixes (8k, 8K); None if it is none."""
        return _integer(self.text(name))

    def switch(self, name: str) -> bool | None:
        """Whether ``--name`` or ``--no-name`` comes last; None if neither is given."""
        state = None
        for option in self.options:
            if option.name == name and not option.path:
                given = (option.value or "true").lower()
                state = given not in ("false", "0")
            elif option.name == name.replace("--", "--no-", 1):
                state = False
        return state

    def object(self, name: str) -> dict[str, Any] | None:
        """The JSON object vLLM would make of an option; None if it is not given.

        Raises:
            CommandError: its text is not a JSON object.
        """
        dotted: dict[str, dict[str, Any]] = {}
        for option in self.all(name):
            if option.path:
                key = option.spelling.lstrip("-").partition(".")[0].replace("_", "-")
                _merge(dotted.setdefault(key, {}), option.path, _dotted_value(option))
        if dotted:
            return list(dotted.values())[-1]
        text = self.text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError as error:
            raise CommandError(f"{name}: {error}; the text is {text[:60]}") from error
        if not isinstance(value, dict):
            raise CommandError(f"{name}: must be a JSON object, not {text[:60]}")
        return value


def parse(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Command:
    """Read a command line from its first word on; ``environment`` are assignments before it.

    Raises:
        CommandError: it starts no vLLM server, or its ``--config`` file cannot be read.
    """
    name = Path(words[0]).name if words else ""
    served = False
    if name == "vllm" and len(words) > 1 and words[1] == "serve":
        rest, served = list(words[2:]), True
    elif re.fullmatch(r"python[\d.]*", name) and list(words[1:2]) == ["-m"]:
        module, rest = words[2] if len(words) > 2 else "", list(words[3:])
        if module == "vllm.entrypoints.cli.main" and rest[:1] == ["serve"]:
            rest, served = rest[1:], True
        elif module not in ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"):
            raise CommandError(f"python -m {module} is not a vLLM server")
    else:
        raise CommandError(
            f"{' '.join(words[:3]) or 'nothing'}: not `vllm serve MODEL` or "
            "`python -m vllm.entrypoints.openai.api_server --model MODEL`"
        )
    model = rest.pop(0) if served and rest and not rest[0].startswith("-") else None
    typed, loose = _options(rest)
    if model is None and served and loose:
        model = loose[0]
    file = next((o.value for o in reversed(typed) if o.name == "--config" and not o.path), None)
    options = [*_from_file(file), *typed] if file else typed
    command = Command(tuple(words), model, tuple(options), environment or {}, file)
    return command if model else _with_model(command)


def _with_model(command: Command) -> Command:
    return Command(
        command.words,
        command.text("--model") or command.text("--model-tag"),
        command.options,
        command.environment,
        command.config_file,
    )


def assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split ``env A=1 B=2 command…`` (``env`` or not) into its assignments and the command."""
    rest = list(words)
    if rest and Path(rest[0]).name == "env":
        rest.pop(0)
    found: dict[str, str] = {}
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        found[name] = value
    return found, rest


def _options(words: Sequence[str]) -> tuple[list[Option], list[str]]:
    """Options and, of those words that belong to none, all."""
    found: list[Option] = []
    loose: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_option(word):
            loose.append(word)
            continue
        spelling, equals, value = word.partition("=")
        name, path = _name(spelling)
        following = words[index] if index < len(words) else None
        given: str | None = value if equals else None
        bare = name in _SWITCHES or name.startswith("--no-")
        if not equals and not bare and following is not None and not _is_option(following):
            given = following
            index += 1
        found.append(Option(name, given, spelling, path))
    return found, loose


def _is_option(word: str) -> bool:
    return word.startswith("-") and re.fullmatch(r"-\d+(\.\d+)?", word) is None and word != "-"


def _name(spelling: str) -> tuple[str, tuple[str, ...]]:
    head, *path = spelling.split(".")
    if head.startswith("--"):
        name = "--" + head[2:].replace("_", "-")
        # argparse accepts a beginning that fits one option only, as this one does.
        if SPECULATIVE.startswith(name) and name.startswith("--specu"):
            name = SPECULATIVE
    else:
        name = _SHORT.get(head, head)
    return name, tuple(path)


def _from_file(file: str) -> list[Option]:
    try:
        yaml: Any = importlib.import_module("yaml")  # of vLLM's dependencies, not of ours
    except ModuleNotFoundError as error:
        raise CommandError(f"--config {file}: reading it needs PyYAML") from error
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"--config {file}: {error}") from error
    if not isinstance(content, dict):
        raise CommandError(f"--config {file}: must hold a mapping of options")
    return list(_flattened(content, file))


def _flattened(content: Mapping[Any, Any], file: str) -> Iterator[Option]:
    for key, value in content.items():
        spelling = f"--{key}"
        name, path = _name(spelling)
        if isinstance(value, bool):
            negated = name.replace("--", "--no-", 1)
            yield Option(name if value else negated, None, spelling, path, file)
        elif isinstance(value, dict):
            yield Option(name, json.dumps(value), spelling, path, file)
        elif isinstance(value, list):
            text = " ".join(map(str, value))
            yield Option(name, text, spelling, path, file)
        else:
            yield Option(name, str(value), spelling, path, file)


def _dotted_value(option: Option) -> object:
    text = option.value or ""
    try:
        return json.loads(text)
    except ValueError:
        number = _integer(text)
        return text if number is None else number


def _merge(into: dict[str, Any], path: Sequence[str], value: object) -> None:
    *parents, last = path
    for key in parents:
        inner = into.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        into = inner
    into[last.removesuffix("+")] = value


def _integer(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", (text or "").strip())
    if match is None:
        return None
    number, letter = match.groups()
    if letter:
        return int(float(number) * _MULTIPLIERS[letter])
    return int(number) if number.isdigit() else None
