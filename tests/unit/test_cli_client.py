# SPDX-License-Identifier: Apache-2.0
"""Reading vLLM's counters and its completion stream."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from diffspec.cli.client import Client, RequestError, parse_spec_counters
from diffspec.cli.serving import HOST, Server
from diffspec.testbed.counters import SpecCounters

BEFORE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
# HELP vllm:spec_decode_num_drafts_created Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7959951867515976e+09
# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 0.0
"""
# A second engine, and positions out of order.
AFTER = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 14.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 4.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 42.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 10.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 18.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 6.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="1"} 2.0
"""


def test_counters_are_read_and_summed_over_engines() -> None:
    assert parse_spec_counters(BEFORE) == SpecCounters(10, 30, 12, (7, 5, 0))
    assert parse_spec_counters(AFTER) == SpecCounters(18, 52, 24, (13, 10, 1))


def test_acceptance_of_a_difference() -> None:
    during = parse_spec_counters(AFTER) - parse_spec_counters(BEFORE)
    assert during == SpecCounters(drafts=8, draft_tokens=22, accepted=12, accepted_at=(6, 5, 1))
    assert during.acceptance_length == 2.5
    assert during.per_position == (0.75, 0.625, 0.125)


def test_the_first_request_of_a_server_has_no_positions_before_it() -> None:
    assert parse_spec_counters(BEFORE) - SpecCounters() == parse_spec_counters(BEFORE)


def test_without_speculation_there_is_no_acceptance() -> None:
    page = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0.0\n"
    counters = parse_spec_counters(page)
    assert counters == SpecCounters()
    assert counters.acceptance_length is None
    assert counters.per_position == ()


@contextmanager
def replay(status: int, body: bytes, pages: Sequence[str] = ()) -> Iterator[Server]:
    """A server that answers every POST with ``body``, as recorded from vLLM 0.28.0, and every GET
    with the next of ``pages``."""
    following = iter(pages)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(status, body)

        def do_GET(self) -> None:
            self.answer(200, next(following).encode())

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer((HOST, 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        try:
            yield Server(f"http://{HOST}:{httpd.server_port}", "m", 0, Path(), 0.0)
        finally:
            httpd.shutdown()
            thread.join()


STREAM = b"""\
data: {"id":"c","choices":[{"index":0,"text":"","finish_reason":null,"token_ids":[176]}]}

data: {"id":"c","choices":[{"index":0,"text":"ab","finish_reason":null,"token_ids":[573,463]}]}

data: {"id":"c","choices":[{"index":0,"text":"c","finish_reason":"length","token_ids":[919]}]}

data: [DONE]

"""


def test_a_stream_is_collected() -> None:
    seen: list[int] = []
    with replay(200, STREAM) as server, Client(server) as client:
        answer = client.complete([1, 2, 3], 4, on_tokens=seen.append)
    assert answer.token_ids == [176, 573, 463, 919]
    assert answer.text == "abc"
    assert seen == [1, 3, 4]
    assert answer.ttft_s > 0
    assert answer.decode_tok_s > 0


def decode_times(*ended: tuple[int, float]) -> str:
    """A page of engines with so many ended requests that decoded for so many seconds."""
    name = "vllm:request_decode_time_seconds"
    lines = [f"# TYPE {name} histogram"]
    for engine, (count, seconds) in enumerate(ended):
        labels = f'engine="{engine}",model_name="m"'
        lines += [
            f'{name}_bucket{{{labels},le="0.3"}} 0.0',
            f'{name}_bucket{{{labels},le="+Inf"}} {count}.0',
            f"{name}_count{{{labels}}} {count}.0",
            f"{name}_sum{{{labels}}} {seconds}",
        ]
    return "\n".join(lines) + "\n"


def test_decode_speed_is_by_the_servers_clock() -> None:
    """The whole stream comes at once here, as it does to a client that gets no processor."""
    pages = decode_times((3, 10.0), (1, 2.0)), decode_times((3, 10.0), (2, 2.5))
    with replay(200, STREAM, pages) as server, Client(server) as client:
        answer = client.measure([1, 2, 3], 4)
    assert answer.decode_tok_s == pytest.approx(3 / 0.5), "three tokens after the first"


@pytest.mark.parametrize(
    "pages",
    [
        (decode_times((3, 10.0)), decode_times((5, 11.0))),
        (decode_times((3, 10.0)), decode_times((3, 10.0))),
        (BEFORE, AFTER),
    ],
    ids=["others ended, too", "not counted yet", "no such metric"],
)
def test_decode_speed_is_by_the_stream_where_the_server_does_not_tell(
    pages: tuple[str, str],
) -> None:
    with replay(200, STREAM, pages) as server, Client(server) as client:
        assert client.measure([1, 2, 3], 4).decode_tok_s > 100


def test_an_error_inside_a_stream_is_raised() -> None:
    error = b'data: {"error":{"message":"EngineCore encountered an issue.","code":500}}\n\n'
    with (
        replay(200, STREAM.split(b"\n\n")[0] + b"\n\n" + error) as server,
        Client(server) as client,
        pytest.raises(RequestError, match=r"broke off: EngineCore encountered an issue\."),
    ):
        client.complete([1], 4)


def test_a_refused_request_is_raised_with_the_servers_message() -> None:
    body = b'{"error":{"message":"This model\'s maximum context length is 64 tokens."}}'
    with (
        replay(400, body) as server,
        Client(server) as client,
        pytest.raises(RequestError, match="HTTP 400: This model's maximum context length is 64"),
    ):
        client.complete([1] * 99, 4)
