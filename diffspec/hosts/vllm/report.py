# SPDX-License-Identifier: Apache-2.0
"""The block of log lines that says, at start, what DiffSpec will do and what it changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diffspec.settings import DiffSpecSettings

MOST_LINES = 8
#: Warnings, by platform, where the code was written but not run.
UNRUN = {
    "cuda": "DiffSpec: CUDA: written, but not yet run on a GPU by this project; please report "
    "what you see",
    "npu": "DiffSpec: Ascend: written against vLLM-Ascend's sources, but not yet run on an NPU by "
    "this project; please report what you see",
}


def start_up_lines(
    settings: DiffSpecSettings,
    *,
    depth: int,
    trained_window: int | None,
    max_model_len: int,
    changes: Mapping[str, str],
    platform: str = "cpu",
) -> list[str]:
    """At most :data:`MOST_LINES` lines for the operator.

    ``depth`` is num_speculative_tokens, ``trained_window`` and ``max_model_len`` are in tokens,
    ``changes`` maps an engine setting with its new value to the reason.
    """
    lines = [UNRUN[platform]] if platform in UNRUN else []
    lines += [
        f"DiffSpec: budget {settings.token_budget} tokens in chunks of {settings.chunk_size}, "
        f"retrieval every {settings.retrieval_interval} verification steps"
        f"{' (longer while acceptance holds)' if settings.adaptive_profile else ''}, "
        "linear verification, "
        + (
            f"depth 0 to {depth}, whatever pays"
            if settings.adaptive_profile
            else f"depth {depth} (diffspec_adaptive_profile is false)"
        ),
        f"DiffSpec: draft trained for {trained_window or 'an unknown number of'} tokens, "
        f"max_model_len {max_model_len}; "
        + (
            f"contexts above {settings.token_budget} tokens are drafted from retrieved chunks"
            if max_model_len > settings.token_budget
            else "no context exceeds the budget, so drafting is that of plain EAGLE-3"
        ),
    ]
    lines += [f"DiffSpec: set {what}: {reason}" for what, reason in changes.items()]
    rest = [f"DiffSpec: {text}" for text in settings.notes]
    room = MOST_LINES - len(lines)
    if len(rest) > room:
        overflow = "; ".join(text.removeprefix("DiffSpec: ") for text in rest[room - 1 :])
        rest = [*rest[: room - 1], f"DiffSpec: {overflow}"]
    return lines + rest


def announce(lines: Sequence[str], *, warn: bool = False) -> None:
    """Write lines to vLLM's log, under its own logger tree so that its handlers show them;
    those of :data:`UNRUN` as warnings, and all of them with ``warn``."""
    from vllm.logger import init_logger

    logger = init_logger("vllm.diffspec")
    for line in lines:
        if warn or line in UNRUN.values():
            logger.warning(line)
        else:
            logger.info(line)
