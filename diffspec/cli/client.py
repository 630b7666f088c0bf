# SPDX-License-Identifier: Apache-2.0
"""Measured completions over the OpenAI API, and vLLM's speculative counters around them.

Acceptance follows vLLM's definitions: acceptance length = 1 + accepted / drafts, and the
unconditional acceptance of position i = steps that accepted position i / drafts. A *draft* is a
verification step that had at least one drafted token.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from diffspec.cli.serving import log_tail
from diffspec.testbed.counters import SpecCounters

if TYPE_CHECKING:
    from typing_extensions import Self

# A long prompt's first token may take minutes on a CPU; a dead server closes the connection sooner.
TIMEOUT = httpx.Timeout(10.0, read=900.0)
_PREFIX = "vllm:spec_decode_num_"
_DECODE = "vllm:request_decode_time_seconds"


class RequestError(RuntimeError):
    """The server refused a request, reported an error in its answer, or stopped answering."""


def parse_spec_counters(exposition: str) -> SpecCounters:
    """The counters in a ``/metrics`` page; all zero for a server without speculation."""
    totals: dict[str, int] = {}
    at: dict[int, int] = {}
    for family in text_string_to_metric_families(exposition):
        if not family.name.startswith(_PREFIX) or family.type != "counter":
            continue
        key = family.name.removeprefix(_PREFIX)
        for sample in family.samples:
            if not sample.name.endswith("_total"):
                continue
            value = int(sample.value)
            if key == "accepted_tokens_per_pos":
                position = int(sample.labels["position"])
                at[position] = at.get(position, 0) + value
            else:
                totals[key] = totals.get(key, 0) + value
    return SpecCounters(
        drafts=totals.get("drafts", 0),
        draft_tokens=totals.get("draft_tokens", 0),
        accepted=totals.get("accepted_tokens", 0),
        accepted_at=tuple(at.get(i, 0) for i in range(max(at) + 1)) if at else (),
    )


def parse_decode_times(exposition: str) -> tuple[int, float]:
    """From a ``/metrics`` page: requests that ended, and the seconds from their first tokens to
    their last ones by the server's own clock."""
    ended, seconds = 0, 0.0
    for family in text_string_to_metric_families(exposition):
        if family.name != _DECODE:
            continue
        for sample in family.samples:
            if sample.name == _DECODE + "_count":
                ended += int(sample.value)
            elif sample.name == _DECODE + "_sum":
                seconds += sample.value
    return ended, seconds


@dataclass
class Completion:
    """One answer.

    Attributes:
        token_ids: the generated tokens.
        text: the same as text.
        ttft_s: seconds from sending the request to its first token.
        latency_s: seconds from sending the request to its last token.
        first_tokens: tokens in the first piece of the stream, which came after ``ttft_s``.
        decode_tok_s: tokens per second after the first one; 0 where there was no second one. By the
            server's clock where :meth:`Client.measure` was asked and the server tells, else by when
            pieces of the stream came: to a client that gets no processor, all at once.
        counters: what the server counted meanwhile; see :func:`measure`.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    ttft_s: float = 0.0
    latency_s: float = 0.0
    first_tokens: int = 0
    decode_tok_s: float = 0.0
    counters: SpecCounters = field(default_factory=SpecCounters)


class Served(Protocol):
    """What a client has to know: one of our own servers, or an endpoint somebody else runs."""

    @property
    def url(self) -> str:
        """Without a trailing slash."""

    @property
    def name(self) -> str:
        """The served model's name."""

    @property
    def log(self) -> Path | None:
        """The server's log, where it can be read."""


class Client:
    """Requests to one server; use it in a ``with`` block.

    Every method raises :class:`RequestError`; where the server is gone, with its log's tail.

    Args:
        server: where to send requests.
        api_key: sent as bearer token if not None.
    """

    def __init__(self, server: Served, api_key: str | None = None) -> None:
        self._server = server
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        # trust_env off: a proxy of the environment has no business with the loopback interface.
        self._http = httpx.Client(
            base_url=server.url, headers=headers, timeout=TIMEOUT, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def name(self) -> str:
        """The model that is asked for."""
        return self._server.name

    def spec_counters(self) -> SpecCounters:
        """The server's counters since its start."""
        return parse_spec_counters(self.get("/metrics"))

    def get(self, path: str) -> str:
        """The body of the page at ``path``."""
        with self._answered():
            answer = self._http.get(path)
        _check(answer)
        return answer.text

    def post(self, path: str, body: object) -> dict[str, Any]:
        """The JSON object answered to the JSON ``body``."""
        with self._answered():
            answer = self._http.post(path, json=body)
        _check(answer)
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RequestError(f"{path}: no JSON object: {answer.text[:200]!r}")
        return found

    def complete(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        on_tokens: Callable[[int], None] | None = None,
        **fields: Any,
    ) -> Completion:
        """Greedy completion of ``prompt`` by exactly ``max_tokens`` tokens, streamed.

        ``on_tokens`` is called with the number of tokens so far, ``fields`` override or add request
        fields. The server's counters are not read; see :meth:`measure`.
        """
        body = {
            "model": self._server.name,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            **fields,
        }
        result = Completion()
        first = last = begin = time.perf_counter()
        with (
            self._answered(),
            self._http.stream("POST", "/v1/completions", json=body) as answer,
        ):
            if answer.is_error:
                answer.read()
            _check(answer)
            for choice in _choices(answer.iter_lines()):
                result.text += choice["text"]
                tokens = choice.get("token_ids") or []
                if not tokens:
                    continue
                last = time.perf_counter()
                if not result.first_tokens:
                    first, result.first_tokens = last, len(tokens)
                result.token_ids += tokens
                if on_tokens is not None:
                    on_tokens(len(result.token_ids))
        result.ttft_s = first - begin
        result.latency_s = last - begin
        if last > first:
            result.decode_tok_s = (len(result.token_ids) - result.first_tokens) / (last - first)
        return result

    def measure(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        on_tokens: Callable[[int], None] | None = None,
        **fields: Any,
    ) -> Completion:
        """:meth:`complete` with the difference of the counters, and decode speed by the server's
        clock: send nothing else meanwhile."""
        before = self.get("/metrics")
        result = self.complete(prompt, max_tokens, on_tokens=on_tokens, **fields)
        after = self.get("/metrics")
        result.counters = parse_spec_counters(after) - parse_spec_counters(before)
        (ended, seconds), (ended_before, seconds_before) = map(parse_decode_times, (after, before))
        if ended == ended_before + 1 and seconds > seconds_before:
            result.decode_tok_s = (len(result.token_ids) - 1) / (seconds - seconds_before)
        return result

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except httpx.RequestError as error:
            log = self._server.log
            tail = f"; last lines of {log}:\n{log_tail(log)}" if log is not None else ""
            raise RequestError(f"no answer from the server ({error}){tail}") from error


def _check(answer: httpx.Response) -> None:
    if answer.is_error:
        raise RequestError(f"{answer.url.path}: HTTP {answer.status_code}: {_message(answer.text)}")


def _message(body: str) -> str:
    """The message inside an OpenAI error object, or the body as it is."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:500]


def _choices(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The first choice of each event of a completion stream."""
    for line in lines:
        data = line.removeprefix("data: ").strip()
        if data == line.strip() or data == "[DONE]":
            continue
        try:
            event = json.loads(data)
        except ValueError:
            raise RequestError(f"the stream holds no JSON: {data[:200]!r}") from None
        if not isinstance(event, dict) or not {"error", "choices"} & event.keys():
            raise RequestError(f"the stream holds no completion: {data[:200]!r}")
        if "error" in event:
            raise RequestError(f"the server broke off: {_message(data)}")
        yield from event["choices"][:1]
