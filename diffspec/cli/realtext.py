# SPDX-License-Identifier: Apache-2.0
"""The demo's second part: SmolLM2-135M-Instruct continues a real text with a small EAGLE-3 head.

The longest prompt is the text's end; each shorter one is a beginning of it, so that with prefix
caching no server reads a token twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from diffspec.cli import report
from diffspec.cli.arms import DIFFSPEC, Request, engine_flags, run_arms, three_arms
from diffspec.cli.progress import Reporter

DEPTH = 3
# The head was trained on 512 tokens; its configuration says more, so the budget has to be given.
KEYS = {"diffspec_token_budget": 512}
MARGIN = 8
DATA = Path(__file__).resolve().parents[2] / "data"
HEAD = DATA / "smollm2-135m-eagle3"
PLAY = DATA / "plays" / "winters-tale.txt"
# How its last word was chosen is told beside it.
PASSAGE = DATA / "passages" / "winters-tale.txt"


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
    """(name, content) of ``path``; when it is ``None``, the play up to the end of the passage.

    ``None`` when no path was given and the repository's ``data`` is not there. Raises
    :class:`TextError`.
    """
    if path is not None:
        return path.name, read_text(path)
    if not (PLAY.exists() and PASSAGE.exists()):
        return None
    before, passage, _ = read_text(PLAY).partition(read_text(PASSAGE))
    return f"{PLAY.name} (cut in Act II)", before + passage


def native_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """``bfloat16`` where the CPU multiplies it in hardware, else ``float32``, faster without."""
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return "bfloat16" if {"avx512_bf16", "amx_bf16", "bf16"}.intersection(flags) else "float32"


def nested(tokens: list[int], lengths: Iterable[int]) -> list[list[int]]:
    """One prompt of n tokens for each n of ``lengths``, shortest first: the longest is the end of
    ``tokens``, the others are beginnings of it.

    A text of fewer tokens is used whole in place of every prompt it is too short for, once.
    """
    sizes = sorted({min(n, len(tokens)) for n in lengths})
    longest = tokens[-sizes[-1] :]
    return [longest[:n] for n in sizes]


def text_section(
    text: tuple[str, str] | None,
    lengths: Sequence[int],
    generate: int,
    out: Path,
    reporter: Reporter,
    *,
    with_target_only: bool,
) -> dict[str, Any]:
    """Serve the text's continuations by stock EAGLE-3 and DiffSpec and return the JSON section.

    Args:
        text: name and content, from :func:`find_text`.
        lengths: tokens of each prompt; see :func:`nested`.
        generate: tokens to generate after each.
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
    prompts = nested(tokens, lengths)
    *shorter, longest = (len(prompt) for prompt in prompts)
    firsts = f", and the first {', '.join(map(str, shorter))} of these" if shorter else ""
    reporter.note(f"{name}: {len(tokens)} tokens; using the last {longest} of them{firsts}")
    dtype = native_dtype()
    results = run_arms(
        three_arms(HEAD, DEPTH, KEYS)[0 if with_target_only else 1 :],
        model,
        engine_flags(dtype, longest + generate + MARGIN, prefixes=True),
        [Request(prompt, generate) for prompt in prompts],
        logs=out / "logs",
        reporter=reporter,
    )
    said = [result.completion.text for result in results if result.arm == DIFFSPEC]
    return {
        "file": name,
        "file_tokens": len(tokens),
        "dtype": dtype,
        "num_speculative_tokens": DEPTH,
        "diffspec_keys": KEYS,
        "continuation": said[-1],
        "rows": report.rows(results),
    }


def show(section: dict[str, Any], console: Console) -> None:
    """Print the continuation of the longest prompt and the table."""
    longest = section["rows"][-1]["prompt_tokens"]
    title = Text(f"{section['file']}, its last {longest} tokens continued by DiffSpec's server")
    console.print(Panel(Text(section["continuation"].strip()), title=title))
    console.print(report.table(section["rows"], report.text_title(section), width=console.width))
    if section["rows"][0]["prompt_tokens"] != longest:
        console.print(
            "Each prompt begins with the one before it, which is cached: its first token waits for "
            "the rest alone."
        )
    if any(row["first_difference"] is not None for row in section["rows"]):
        console.print(
            f"In {section['dtype']} two candidates can be equally good up to rounding; which one "
            "wins depends on how many rows a step verifies. From there on the texts differ."
        )
