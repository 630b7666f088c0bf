# SPDX-License-Identifier: Apache-2.0
"""A vLLM server's command line, read as vLLM 0.28 reads it, without vLLM.

vLLM's parser takes dashes and underscores alike, collects dotted options such as
``--speculative-config.method eagle3`` into one object that it appends at the end, and puts what a
``--config`` file says before what is typed. The last value of an option counts, and a beginning
that fits one option only stands for it.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SPECULATIVE = "--speculative-config"
#: The extension manager's command.
MANAGER = "vllm-hust-ext"

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
#: Options that take every word up to the next option.
_MANY = frozenset({"--cudagraph-capture-sizes"})
#: The options that are read here, for telling a shortened name.
_READ = frozenset(
    {
        *_SHORT.values(),
        *_SWITCHES,
        *(name.replace("--", "--no-", 1) for name in _SWITCHES),
        *_MANY,
        *(
            f"--{name}"
            for name in (
                "additional-config",
                "attention-backend",
                "dtype",
                "kv-cache-dtype",
                "kv-offloading-size",
                "kv-transfer-config",
                "max-model-len",
                "max-num-seqs",
                "model",
                "spec-method",
                "spec-model",
                "spec-tokens",
                "worker-cls",
            )
        ),
    }
)
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_MODULE_FLAG = re.compile(r"-[bBdEiIOPqsSuvx]*m")
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

    model: str | None
    options: tuple[Option, ...]

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

    def integers(self, name: str) -> tuple[int, ...]:
        """The integers of an option that takes several."""
        found = (_integer(word) for word in (self.text(name) or "").split())
        return tuple(number for number in found if number is not None)

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


def parse(words: Sequence[str]) -> Command:
    """Read a command line from its first word on.

    Raises:
        CommandError: it starts no vLLM server, or its ``--config`` file cannot be read.
    """
    at = begin(words)
    server = None if at is None else _server(words[at:])
    if server is None:
        module, _ = _module(words)
        if module:
            raise CommandError(f"python -m {module} is not a vLLM server")
        raise CommandError(
            f"{' '.join(words[:3]) or 'nothing'}: not `vllm serve MODEL` or "
            "`python -m vllm.entrypoints.openai.api_server --model MODEL`"
        )
    served, rest = server
    model = rest.pop(0) if served and rest and not rest[0].startswith("-") else None
    typed, loose = _options(rest)
    if model is None and served and loose:
        model = loose[0]
    file = next((o.value for o in reversed(typed) if o.name == "--config" and not o.path), None)
    options = [*_from_file(file), *typed] if file else typed
    command = Command(model, tuple(options))
    return command if model else replace(command, model=command.text("--model"))


def begin(words: Sequence[str]) -> int | None:
    """Where the server's or the Manager's own command begins, or None.

    What stands before it only starts it: ``env A=1``, ``nohup``, ``numactl -m 0``, ``uv run``.
    """
    for index, word in enumerate(words):
        if Path(word).name == MANAGER or _server(words[index:]) is not None:
            return index
    return None


def _server(words: Sequence[str]) -> tuple[bool, list[str]] | None:
    """Whether the model may stand without an option, and the words after the server's name; None
    if ``words`` do not begin with one."""
    if Path(words[0]).name == "vllm":
        return (True, list(words[2:])) if list(words[1:2]) == ["serve"] else None
    module, rest = _module(words)
    if module == "vllm.entrypoints.cli.main" and rest[:1] == ["serve"]:
        return True, rest[1:]
    return (False, rest) if module in _SERVERS else None


def _module(words: Sequence[str]) -> tuple[str, list[str]]:
    """The module that ``python … -m MODULE`` runs, empty for other words, and what follows it."""
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return "", []
    index = 1
    while index < len(words) and words[index].startswith("-"):
        if _MODULE_FLAG.fullmatch(words[index]):
            return " ".join(words[index + 1 : index + 2]), list(words[index + 2 :])
        index += 2 if words[index] in ("-W", "-X") else 1
    return "", []


def changes(words: Sequence[str]) -> dict[str, str | None]:
    """What ``A=1``, ``env A=1`` and ``env -u A`` do to the environment; None takes a name out.

    ``words`` are those before a command.
    """
    found: dict[str, str | None] = {}
    by_env = False
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        by_env = by_env or Path(word).name == "env"
        name, _, value = word.partition("=")
        if _ASSIGNMENT.fullmatch(word):
            found[name] = value
        elif by_env and word in ("-u", "--unset"):
            found[following] = None
        elif by_env and name == "--unset":
            found[value] = None
    return found


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
        start = index
        if not equals and name not in _SWITCHES and not name.startswith("--no-"):
            most = len(words) if name in _MANY else index + 1
            while index < min(most, len(words)) and not _is_option(words[index]):
                index += 1
        given = " ".join(words[start:index]) if index > start else None
        found.append(Option(name, value if equals else given, spelling, path))
    return found, loose


def _is_option(word: str) -> bool:
    return word.startswith("-") and re.fullmatch(r"-\d+(\.\d+)?", word) is None and word != "-"


def _name(spelling: str) -> tuple[str, tuple[str, ...]]:
    head, *path = spelling.split(".")
    if head.startswith("--"):
        name = "--" + head[2:].replace("_", "-")
        whole = [known for known in _READ if known.startswith(name)]
        # Where another option of vLLM fits too, vLLM refuses the name as ambiguous.
        if name not in _READ and len(whole) == 1:
            name = whole[0]
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
