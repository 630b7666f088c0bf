# SPDX-License-Identifier: Apache-2.0
"""What a qualification asks of an endpoint beyond measured completions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from diffspec.cli.client import Client, RequestError


class Asker(Client):
    """A :class:`~diffspec.cli.client.Client` that can be rude; see there for what is raised."""

    def likeliest(
        self, prompt: Sequence[int], max_tokens: int, count: int
    ) -> list[tuple[int, dict[int, float]]]:
        """Greedy completion with the log-probabilities of the ``count`` likeliest tokens at each.

        Each element: the token, and token → log-probability.
        """
        body = {
            "model": self.name,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": count,
            "return_tokens_as_token_ids": True,
        }
        answer = self.post("/v1/completions", body)
        try:
            choice = answer["choices"][0]
            tops = [
                {int(token.removeprefix("token_id:")): value for token, value in top.items()}
                for top in choice["logprobs"]["top_logprobs"]
            ]
            return list(zip(choice["token_ids"], tops, strict=True))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RequestError(f"no log-probabilities in the answer: {error!r}") from error

    def together(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """The answers to ``prompts``, all sent at once."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = pool.map(lambda prompt: self.complete(prompt, max_tokens), prompts)
            return [answer.token_ids for answer in answers]

    def leave(self, prompt: Sequence[int], max_tokens: int, after: int) -> int:
        """Go away in mid-answer, once ``after`` tokens came; how many had come by then."""

        def seen(count: int) -> None:
            if count >= after:
                raise _EnoughError(count)

        try:
            return len(self.complete(prompt, max_tokens, on_tokens=seen).token_ids)
        except _EnoughError as enough:
            return enough.count

    def status(self, path: str, body: bytes) -> int:
        """The HTTP status answered to ``body``, whatever it is."""
        with self._answered():
            headers = {"Content-Type": "application/json"}
            return self._http.post(path, content=body, headers=headers).status_code


class _EnoughError(Exception):
    """Ends a stream from inside, which closes its connection."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count
