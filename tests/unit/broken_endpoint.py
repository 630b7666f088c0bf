# SPDX-License-Identifier: Apache-2.0
"""An OpenAI endpoint that answers by rule and can be broken in one way.

For the ways in which vLLM, that does run here, does not fail on request. A prompt's right answer is
its own tokens over and over; a token is a character.
"""

from __future__ import annotations

import http.server
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from diffspec.cli.serving import HOST

DEPTH = 3
Handler = http.server.BaseHTTPRequestHandler


@dataclass
class Broken:
    """An endpoint's state and what is wrong with it.

    Attributes:
        wrong_at: index of the token that is another one in every answer; None for right answers.
        right_for: completions that are right before it shows.
        gap: how far apart the two candidates' log-probabilities are there.
        dies_after: tokens after which every stream ends without an end; None: none does.
        fails: every completion is answered with 500.
        accepts_all: bad requests are answered with 200.
        stuck: requests that its gauge shows for ever.
        drafts: whether it speculates; ``diffspec`` whether DiffSpec reports.
        miscounts: accepted tokens counted too much by every request.
        lost: steps that DiffSpec does not count; ``rested`` those it says were without drafts. Both
            grow by that much with every request.
        faults: what ``vllm:diffspec_faults_total`` says.
    """

    wrong_at: int | None = None
    right_for: int = 0
    gap: float = 1.0
    dies_after: int | None = None
    fails: bool = False
    accepts_all: bool = False
    stuck: int = 0
    drafts: bool = True
    diffspec: bool = True
    miscounts: int = 0
    lost: int = 0
    rested: int = 0
    requests: int = 0
    faults: int = 0
    max_model_len: int = 400
    generated: int = 0
    steps: int = 0
    accepted: list[int] = field(default_factory=lambda: [0] * DEPTH)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, prompt: list[int], count: int) -> list[int]:
        tokens = list(itertools.islice(itertools.cycle(prompt), count))
        with self.lock:
            self.right_for -= 1
            if self.right_for < 0 and self.wrong_at is not None and self.wrong_at < count:
                tokens[self.wrong_at] += 1
        return tokens

    def counted(self, tokens: int) -> None:
        with self.lock:
            self.generated += tokens
            self.requests += 1
            if not self.drafts:
                return
            # After the first token every step accepts all its drafts, the last one what is left.
            for begin in range(1, tokens, DEPTH + 1):
                self.steps += 1
                for position in range(min(DEPTH, tokens - begin - 1)):
                    self.accepted[position] += 1
            self.accepted[0] += self.miscounts

    def metrics(self) -> str:
        drafted, accepted = self.steps * DEPTH, sum(self.accepted)
        numbers: dict[str, float] = {"vllm:generation_tokens_total": self.generated}
        if self.drafts:
            numbers |= {
                "vllm:spec_decode_num_drafts_total": self.steps,
                "vllm:spec_decode_num_draft_tokens_total": drafted,
                "vllm:spec_decode_num_accepted_tokens_total": accepted,
            }
        if self.diffspec:
            numbers |= {
                "vllm:diffspec_request_steps_total": self.steps - self.lost * self.requests,
                "vllm:diffspec_depth_zero_total": self.rested * self.requests,
                "vllm:diffspec_drafted_tokens_total": drafted,
                "vllm:diffspec_accepted_tokens_total": accepted,
                "vllm:diffspec_faults_total": self.faults,
            }
        lines = [f"# TYPE {name} counter\n{name} {value}" for name, value in numbers.items()]
        lines.append(
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {self.stuck}"
        )
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        if self.drafts:
            lines.append(f"# TYPE {name} counter")
            lines += [f'{name}{{position="{i}"}} {n}' for i, n in enumerate(self.accepted)]
        return "\n".join(lines) + "\n"

    def refuses(self, body: dict[str, Any]) -> bool:
        prompt = body["prompt"]
        return (
            body["model"] != "m"
            or not isinstance(prompt, list)
            or len(prompt) + body["max_tokens"] > self.max_model_len
            or body["max_tokens"] < 0
            or body["temperature"] < 0
            or body.get("logprobs", 0) > 20
        )


def _handler(state: Broken) -> type[Handler]:
    class Answers(Handler):
        def do_GET(self) -> None:
            card = {"id": "m", "max_model_len": state.max_model_len}
            pages = {
                "/v1/models": json.dumps({"data": [card]}),
                "/metrics": state.metrics(),
                "/version": '{"version": "0.28.0"}',
                "/health": "",
            }
            self._send(200, pages[self.path])

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                body = json.loads(raw)
                refused = self.path == "/v1/completions" and state.refuses(body)
            except ValueError:
                refused = True
            if refused:
                self._send(200 if state.accepts_all else 400, '{"error": {"message": "no"}}')
            elif self.path == "/tokenize":
                ids = [1] * body["add_special_tokens"] + [ord(c) for c in body["prompt"]]
                self._send(200, json.dumps({"tokens": ids}))
            elif state.fails:
                self._send(500, '{"error": {"message": "out of order"}}')
            else:
                self._complete(body)

        def _complete(self, body: dict[str, Any]) -> None:
            if body.get("stream"):
                self._stream(state.answer(body["prompt"], body["max_tokens"]))
                return
            tokens = Broken().answer(body["prompt"], body["max_tokens"])
            tops = [
                {f"token_id:{token}": -0.5, f"token_id:{token + 1}": -0.5 - state.gap}
                for token in tokens
            ]
            choice = {"token_ids": tokens, "logprobs": {"top_logprobs": tops}}
            self._send(200, json.dumps({"choices": [choice]}))

        def _stream(self, tokens: list[int]) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                for count, token in enumerate(tokens, 1):
                    event = {"choices": [{"text": chr(token), "token_ids": [token]}]}
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                    if count == state.dies_after:
                        return
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                return  # the client went away
            state.counted(len(tokens))

        def _send(self, status: int, page: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(page.encode())))
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    return Answers


@contextmanager
def serving(state: Broken) -> Iterator[str]:
    """The endpoint's URL."""
    with http.server.ThreadingHTTPServer((HOST, 0), _handler(state)) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        try:
            yield f"http://{HOST}:{httpd.server_port}"
        finally:
            httpd.shutdown()
            thread.join()
