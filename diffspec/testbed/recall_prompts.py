# SPDX-License-Identifier: Apache-2.0
"""Prompts for the recall pair, each with the one true continuation."""

from __future__ import annotations

import random
from dataclasses import dataclass

from diffspec.testbed._checkpoint import BOS, BYTE_VOCAB, FIRST_BYTE, byte_alphabet

NGRAM = 4
"""The pair looks up the last four tokens, so a four-token sequence may occur in one place only."""


@dataclass(frozen=True)
class RecallPrompt:
    """A prompt that ends with the first tokens of a passage it contains.

    Attributes:
        prompt_ids: BOS, a random document, then the cue.
        continuation_ids: what follows the cue's source, to the document's end: the right answer.
        source_start: index in `prompt_ids` of the passage's first token, so that
            `prompt_ids[source_start + cue] == continuation_ids[0]`.
    """

    prompt_ids: list[int]
    continuation_ids: list[int]
    source_start: int


def make_recall_prompt(
    length: int,
    *,
    seed: int = 0,
    at: float = 0.3,
    cue: int = 8,
    vocab: int = 512,
    topic: int = 0,
    segment: int = 256,
) -> RecallPrompt:
    """Return a prompt of exactly `length` tokens; equal arguments give equal prompts.

    No 4-gram occurs twice in the document, so the continuation is unambiguous up to its end. The
    tokens are printable ASCII (neither `<` nor space) and `<xNNN>`: the ids survive a trip through
    text.

    Args:
        length: tokens, BOS and cue included.
        seed: chooses the document (together with `length`).
        at: where the passage starts, as a fraction of the document, 0 <= at < 1.
        cue: tokens of the passage repeated at the end, at least 4.
        vocab: the pair's vocabulary.
        topic: if not 0, every `segment` tokens draw on `topic` random words only. The mean key of a
            chunk then resembles queries about that chunk, as in natural text.
        segment: see `topic`, in tokens.

    Raises:
        ValueError: if an argument is out of range or leaves no continuation.
    """
    if cue < NGRAM:
        raise ValueError(f"cue is at least {NGRAM} tokens; got {cue}")
    if not 0 <= at < 1:
        raise ValueError(f"at is in [0, 1); got {at}")
    if vocab < BYTE_VOCAB:
        raise ValueError(f"vocab is at least {BYTE_VOCAB}; got {vocab}")
    words = _words(vocab)
    if not 0 <= topic <= len(words):
        raise ValueError(f"topic is in 0..{len(words)}; got {topic}")
    if segment < 1:
        raise ValueError(f"segment is at least 1; got {segment}")
    size = length - 1 - cue
    start = int(at * size)
    if start + cue >= size:
        raise ValueError(f"length {length} leaves no continuation after a cue at {at}")
    document = _document(size, random.Random(f"{seed}-{length}"), words, topic, segment)
    return RecallPrompt(
        prompt_ids=[BOS, *document, *document[start : start + cue]],
        continuation_ids=document[start + cue :],
        source_start=1 + start,
    )


def _words(vocab: int) -> list[int]:
    printable = [
        FIRST_BYTE + i
        for i, character in enumerate(byte_alphabet())
        if "!" <= character <= "~" and character != "<"
    ]
    return printable + list(range(BYTE_VOCAB, vocab))


def _document(
    size: int, rng: random.Random, words: list[int], topic: int, segment: int
) -> list[int]:
    document: list[int] = []
    seen: set[tuple[int, ...]] = set()
    pool = words
    while len(document) < size:
        if topic and len(document) % segment == 0:
            pool = rng.sample(words, topic)
        before = tuple(document[-(NGRAM - 1) :])
        token = rng.choice(pool)
        if (*before, token) in seen:
            # Leave the topic's few words only where they can no longer continue without repeating.
            fresh = [w for w in pool if (*before, w) not in seen]
            token = rng.choice(fresh or [w for w in words if (*before, w) not in seen])
        seen.add((*before, token))
        document.append(token)
    return document
