"""Body size and time limits, on raw sockets where a client library would be too well-behaved."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from sojourn.errors import PayloadTooLarge
from sojourn.server.limits import MAX_BODY_BYTES, BodyLimit
from tests.server.conftest import Live
from tests.server.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def answer_of(raw: socket.socket) -> bytes:
    """One whole JSON answer, head and body."""
    raw.settimeout(10)
    data = b""
    while not data.endswith(b"}}"):
        piece = raw.recv(65536)
        assert piece, "closed without an answer"
        data += piece
    return data


def test_b66_a_declared_size_beyond_the_limit_is_refused_before_the_body(live: Live) -> None:
    with socket.create_connection(live.address) as raw:
        raw.sendall(f"{HEAD}Content-Length: {64 * 2**20}\r\n\r\n".encode())
        answer = answer_of(raw)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"payload_too_large"' in answer


def test_b66_a_chunked_body_is_counted_as_it_comes(live: Live, engine: FakeEngine) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    piece = b"%x\r\n" % 2**20 + b" " * 2**20 + b"\r\n"
    with socket.create_connection(live.address) as raw:
        raw.settimeout(10)
        raw.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(33):
            raw.sendall(piece)
        assert answer_of(raw).startswith(b"HTTP/1.1 413")
    assert engine.submitted == []
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 2 * MAX_BODY_BYTES


def test_b66_a_large_body_within_the_limit_is_served(http: httpx.Client) -> None:
    reply = http.post("/tokenize", json={"prompt": "x" * 5_000_000, "return_token_strs": False})
    assert reply.json()["count"] == 5_000_001


def test_b66_the_server_is_well_after_refusals(live: Live, http: httpx.Client) -> None:
    for _ in range(5):
        with socket.create_connection(live.address) as raw:
            raw.sendall(f"{HEAD}Content-Length: {64 * 2**20}\r\n\r\n".encode() + b" " * 100_000)
            assert answer_of(raw).startswith(b"HTTP/1.1 413")
    assert http.get("/health").status_code == 200


def scope(length: int | None = None) -> Scope:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return {"type": "http", "headers": headers}


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass


async def no_send(message: Message) -> None:
    raise AssertionError("nothing is sent here")


def pieces(*bodies: bytes) -> Receive:
    left = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
    left[-1]["more_body"] = False

    async def receive() -> Message:
        return left.pop(0)

    return receive


def test_a_body_of_exactly_the_limit_passes_and_one_more_byte_does_not() -> None:
    limit = BodyLimit(read_all, max_bytes=8)
    asyncio.run(limit(scope(8), pieces(b"1234", b"5678"), no_send))
    with pytest.raises(PayloadTooLarge):
        asyncio.run(limit(scope(), pieces(b"1234", b"56789"), no_send))
    with pytest.raises(PayloadTooLarge):
        asyncio.run(limit(scope(9), pieces(b""), no_send))


def test_a_false_content_length_does_not_pass() -> None:
    with pytest.raises(PayloadTooLarge):
        asyncio.run(BodyLimit(read_all, max_bytes=8)(scope(3), pieces(b"123456789"), no_send))


def test_a_body_that_stops_coming_times_out() -> None:
    async def never() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    from starlette.exceptions import HTTPException

    began = time.monotonic()
    with pytest.raises(HTTPException) as caught:
        asyncio.run(BodyLimit(read_all, stall_seconds=0.05)(scope(), never, no_send))
    assert caught.value.status_code == 408
    assert time.monotonic() - began < 5


def test_b62_health_answers_while_large_prompts_are_handled(live: Live, http: httpx.Client) -> None:
    import concurrent.futures

    body = json.dumps({"prompt": "x" * 5_000_000, "max_tokens": 1}).encode()

    def post(_: int) -> int:
        return httpx.post(
            live.url + "/v1/completions",
            content=body,
            headers={"content-type": "application/json"},
            timeout=30,
            trust_env=False,
        ).status_code

    slowest = 0.0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        work = [pool.submit(post, number) for number in range(4)]
        while not all(future.done() for future in work):
            began = time.monotonic()
            assert http.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.02)
    assert [future.result() for future in work] == [400] * 4  # far beyond the context
    assert slowest < 5.0  # generous: the fake tokenizes on the loop and shares this process with its clients
