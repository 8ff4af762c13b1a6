"""Request ids: echoed, replaced when harmful, never confused."""

from __future__ import annotations

import concurrent.futures
import logging
import socket

import httpx
import pytest

from tests.server.conftest import Live, wait_for
from tests.server.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("path", [CHAT, "/nope", "/health", "/v1/models", "/metrics"])
def test_b72_a_clients_id_is_echoed_on_every_reply(http: httpx.Client, path: str) -> None:
    assert http.post(path, json=GOOD, headers={"x-request-id": "my-id.1"}).headers["x-request-id"] == "my-id.1"


@pytest.mark.parametrize("bad", ["x" * 129, "x" * 2**20, "a b", "", "caf\u00e9", "tab\tbed"], ids=lambda bad: bad[:8])
def test_b72_an_id_that_is_too_long_or_not_printable_is_replaced(http: httpx.Client, bad: str) -> None:
    header = http.get("/health", headers={"x-request-id": bad.encode("utf-8")}).headers["x-request-id"]
    assert header != bad
    assert 0 < len(header) <= 128


def test_b72_a_line_break_in_an_id_can_not_split_the_reply(live: Live) -> None:
    with socket.create_connection(live.address) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\rSet-Cookie: b\r\n\r\n")
        assert b"set-cookie" not in raw.recv(4096).lower()


def test_b72_the_same_id_twice_at_once_gives_two_right_answers(http: httpx.Client, engine: FakeEngine) -> None:
    engine.delay = 0.01

    def one(text: str) -> str:
        body = {"messages": [{"role": "user", "content": f"say:{text}|"}]}
        reply = http.post(CHAT, json=body, headers={"x-request-id": "same"})
        assert reply.headers["x-request-id"] == "same"
        return reply.json()["choices"][0]["message"]["content"]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, ["first", "second"])) == ["first", "second"]
    assert len({sent.request_id for sent in engine.submitted}) == 2


def test_b72_the_engines_id_is_the_replys_id(http: httpx.Client, engine: FakeEngine) -> None:
    reply = http.post(CHAT, json=GOOD)
    assert engine.submitted[0].request_id == reply.json()["id"]
    assert reply.json()["id"] == "chatcmpl-" + reply.headers["x-request-id"]


def test_b72_one_log_line_joins_both_ids(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sojourn.server"):
        reply = http.post(CHAT, json=GOOD, headers={"x-request-id": "join-me"}).json()
        wait_for(lambda: any("join-me" in message for message in caplog.messages))
    (line,) = [message for message in caplog.messages if "join-me" in message]
    assert reply["id"] in line
    assert "POST /v1/chat/completions 200" in line
