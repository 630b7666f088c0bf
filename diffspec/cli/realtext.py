# SPDX-License-Identifier: Apache-2.0
"""The demo's second part: SmolLM2-135M-Instruct continues a real text with a small EAGLE-3 head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from diffspec.cli import report
from diffspec.cli.arms import DIFFSPEC, Request, engine_flags, run_arms, three_arms
from diffspec.cli.progress import Reporter

CONTEXT = 8192
DEPTH = 3
# The head was trained on 512 tokens; its configuration says more, so the budget has to be given.
KEYS = {"diffspec_token_budget": 512}
MARGIN = 8
DATA = Path(__file__).resolve().parents[2] / "data"
HEAD = DATA / "smollm2-135m-eagle3"
PASSAGES = DATA / "passages"


class TextError(RuntimeError):
    """The text to continue cannot be used."""


def read_text(path: Path) -> str:
    """The content of ``path``; raises :class:`TextError` if it is no text or has nothing in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise TextError(f"cannot read {path}: {error.strerror or error}") from error
    if not text.strip():
        raise TextError(f"{path} is empty")
    return text


def find_text(path: Path | None) -> tuple[str, str] | None:
    """(name, content) of ``path``, or of the first passage of the repository when it is ``None``.

    ``None`` when no path was given and the repository's ``data`` is not there. Raises
    :class:`TextError`.
    """
    if path is None:
        path = next(iter(sorted(PASSAGES.glob("*.txt"))), None)
    return None if path is None else (path.name, read_text(path))


def native_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """``bfloat16`` where the CPU multiplies it in hardware, else ``float32``, faster without."""
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return "bfloat16" if {"avx512_bf16", "amx_bf16", "bf16"}.intersection(flags) else "float32"


def keep_end(tokens: list[int], room: int) -> tuple[list[int], int]:
    """The last ``room`` tokens, and how many were dropped before them."""
    dropped = max(0, len(tokens) - room)
    return tokens[dropped:], dropped


def text_section(
    text: tuple[str, str] | None,
    generate: int,
    limit: int,
    out: Path,
    reporter: Reporter,
    *,
    with_target_only: bool,
) -> dict[str, Any]:
    """Serve the text's continuation by stock EAGLE-3 and DiffSpec and return the JSON section.

    Args:
        text: name and content, from :func:`find_text`.
        generate: tokens to generate.
        limit: most tokens of prompt and continuation together.
        out: folder for models and logs.
        reporter: is told what is going on.
        with_target_only: serve it by the target alone first.

    Returns:
        the section, or ``{"skipped": reason}`` where a part of the pair is not there.
    """
    if text is None or not HEAD.is_dir():
        return {"skipped": f"{DATA} is not here: it comes with the repository, not the wheel."}
    reporter.begin("preparing SmolLM2-135M-Instruct")
    try:
        from tokenizers import Tokenizer

        from diffspec.testbed.smollm2 import smollm2_folder

        model = smollm2_folder()
    except ModuleNotFoundError as error:
        return {"skipped": f"{error.name} is not installed (`make setup` installs it)."}
    except FileNotFoundError as error:  # says how to get the model
        return {"skipped": str(error)}
    name, content = text
    tokens = list(Tokenizer.from_file(str(model / "tokenizer.json")).encode(content).ids)
    prompt, dropped = keep_end(tokens, limit - generate - MARGIN)
    if dropped:
        reporter.note(f"{name}: {len(tokens)} tokens; using the last {len(prompt)} of them")
    dtype = native_dtype()
    results = run_arms(
        three_arms(HEAD, DEPTH, KEYS)[0 if with_target_only else 1 :],
        model,
        engine_flags(dtype, len(prompt) + generate + MARGIN),
        [Request(prompt, generate)],
        logs=out / "logs",
        reporter=reporter,
    )
    said = {result.arm: result.completion.text for result in results}
    return {
        "file": name,
        "dropped_tokens": dropped,
        "dtype": dtype,
        "num_speculative_tokens": DEPTH,
        "diffspec_keys": KEYS,
        "continuation": said[DIFFSPEC],
        "rows": report.rows(results),
    }


def show(section: dict[str, Any], console: Console) -> None:
    """Print the continuation and the table."""
    title = Text(f"{section['file']}, continued by DiffSpec's server")
    console.print(Panel(Text(section["continuation"].strip()), title=title))
    if dropped := section["dropped_tokens"]:
        console.print(f"The text's first {dropped} tokens were left out: too long for this run.")
    depth = section["num_speculative_tokens"]
    model = f"SmolLM2-135M-Instruct, {section['dtype']}, k = {depth}, head trained on 512 tokens"
    console.print(report.table(section["rows"], model))
    if any(row["first_difference"] is not None for row in section["rows"]):
        console.print(
            f"In {section['dtype']} two candidates can be equally good up to rounding; which one "
            "wins depends on how many rows a step verifies. From there on the texts differ."
        )
