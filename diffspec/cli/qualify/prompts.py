# SPDX-License-Identifier: Apache-2.0
"""Prompts of an exact number of tokens for a model that is known by its endpoint alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from diffspec.cli.client import Client, RequestError
from diffspec.cli.qualify.text import ledger

#: Tokens of an earlier passage with which a prompt ends, and where that passage begins.
CUE, CUE_AT = 16, 0.3
#: Characters asked for per token wanted, to begin with; doubled until the tokens are enough.
_CHARACTERS = 5

#: number of the prompt, characters wanted → text; shorter where there is no more.
Source = Callable[[int, int], str]


def from_file(path: Path) -> Source:
    """Pieces of a UTF-8 text, each prompt from another place; raises OSError or ValueError."""
    text = path.read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError(f"{path}: no text in it")

    def piece(number: int, characters: int) -> str:
        spare = max(1, len(text) - characters)
        begin = number * 7919 % spare  # a prime, so that neighbours lie far apart
        return text[begin : begin + characters]

    return piece


@dataclass(frozen=True)
class Prompts:
    """Makes prompts with the endpoint's own tokenizer (``/tokenize``).

    Attributes:
        client: the endpoint.
        source: where text comes from.
        plain: whether prompts end as the text goes on. Otherwise they end with the first tokens of
            a passage they hold, which leaves the target little doubt about what follows, and which
            only a draft that finds the passage again can follow.
    """

    client: Client
    source: Source = ledger
    plain: bool = False

    def prompt(self, length: int, number: int) -> list[int]:
        """Prompt ``number`` of exactly ``length`` tokens; equal arguments give equal prompts.

        Raises:
            RequestError: the endpoint cannot tokenize.
            ValueError: the text is too short, or ``length`` is too small for a repeated passage.
        """
        cue = 0 if self.plain else CUE
        lead = self.lead
        wanted = length - cue - len(lead)
        if wanted < 4 * CUE:
            raise ValueError(f"prompts of {length} tokens are too short to say anything")
        characters, text = _CHARACTERS * wanted, ""
        while True:
            before, text = text, self.source(number, characters)
            ids = self._tokens(text, special=False)
            if len(ids) >= wanted:
                break
            if len(text) <= len(before):
                raise ValueError(
                    f"the text has {len(ids)} tokens where prompts of {length} are wanted"
                )
            characters *= 2
        document = ids[:wanted]
        start = int(CUE_AT * wanted)
        return [*lead, *document, *document[start : start + cue]]

    @cached_property
    def lead(self) -> list[int]:
        """The special tokens that this model's prompts begin with."""
        bare = self._tokens("a", special=False)
        whole = self._tokens("a", special=True)
        return whole[: whole.index(bare[0])] if bare and bare[0] in whole else []

    def _tokens(self, text: str, *, special: bool) -> list[int]:
        body = {"model": self.client.name, "prompt": text, "add_special_tokens": special}
        found = self.client.post("/tokenize", body).get("tokens")
        if not isinstance(found, list):
            raise RequestError("/tokenize: no tokens in the answer")
        return found
