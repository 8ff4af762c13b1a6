"""The order and content of server-sent events, on the wire."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import httpx
import pytest

from sojourn.errors import RequestFailed, Unavailable
from tests.server.conftest import Live, wait_for
from tests.server.fake_engine import FakeEngine
from tests.server.streams import check_complete, events, stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def ask(path: str, text: str = "hi") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text, "max_tokens": 500}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_b49_every_stream_keeps_the_order_of_events(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    rng = random.Random(49)
    for _ in range(40):
        text = "".join(rng.choices('aé日🇨 \n"\\', k=rng.randint(1, 12)))
        n, usage = rng.randint(1, 3), rng.random() < 0.5
        engine.tokens_per_step = rng.randint(1, 5)
        body: dict[str, Any] = {**ask(path, f"say:{text}|"), "n": n}
        if usage:
            body["stream_options"] = {"include_usage": True}
        if rng.random() < 0.5:
            body |= {"logprobs": True} if path == CHAT else {"logprobs": 1}
        texts = check_complete(stream(http, path, body), n=n, include_usage=usage, chat=path == CHAT)
        assert texts == [text] * n


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_b45_no_usage_unless_asked(http: httpx.Client, path: str, options: dict[str, Any] | None) -> None:
    data = stream(http, path, {**ask(path), "stream_options": options})
    assert all("usage" not in json.loads(item) for item in data[:-1])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_b45_usage_of_a_stream_equals_that_of_one_piece(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    engine.cached = 1
    body = ask(path) | {"n": 2}
    whole = http.post(path, json=body).json()["usage"]
    streamed = json.loads(stream(http, path, {**body, "stream_options": {"include_usage": True}})[-2])["usage"]
    assert streamed == whole
    assert whole["prompt_tokens_details"] == {"cached_tokens": 1}


def test_b45_stream_options_without_stream_is_refused(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**ask(CHAT), "stream_options": {"include_usage": True}})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream_options")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_b48_failure_in_mid_stream_is_an_error_event_and_the_end(
    http: httpx.Client, engine: FakeEngine, path: str
) -> None:
    engine.fail_at = (5, RequestFailed("The logits held a NaN."))
    data = stream(http, path, ask(path))
    error = json.loads(data[-1])["error"]
    assert (error["type"], error["code"], error["message"]) == (
        "server_error",
        "request_failed",
        "The logits held a NaN.",
    )
    chunks = [json.loads(item) for item in data[:-1]]
    assert chunks
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("stream_mode", [False, True])
def test_b48_failure_before_the_first_token_is_a_plain_error(
    http: httpx.Client, engine: FakeEngine, stream_mode: bool
) -> None:
    engine.fail_at = (0, RequestFailed("broken"))
    reply = http.post(CHAT, json={**ask(CHAT), "stream": stream_mode})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "request_failed")


def test_b48_failure_without_a_stream_is_a_5xx(http: httpx.Client, engine: FakeEngine) -> None:
    engine.fail_at = (5, Unavailable("The engine is not running.", code="dead"))
    reply = http.post(CHAT, json=ask(CHAT))
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "dead")
    assert reply.headers["retry-after"] == "5"


def test_an_unexpected_exception_in_mid_stream_hides_its_text(http: httpx.Client, engine: FakeEngine) -> None:
    engine.fail_at = (3, ZeroDivisionError("secret"))
    data = stream(http, CHAT, ask(CHAT))
    assert json.loads(data[-1])["error"]["code"] == "internal_error"
    assert "secret" not in data[-1]


def test_b57_each_of_64_concurrent_replies_is_its_own(live: Live, engine: FakeEngine) -> None:
    engine.delay = 0.0005
    with httpx.Client(base_url=live.url, timeout=30, trust_env=False) as http:
        import concurrent.futures

        def one(number: int) -> tuple[str, str]:
            text = f"answer {number} " * 3
            body = ask(CHAT, f"say:{text}|")
            if number % 2:
                return text, check_complete(stream(http, CHAT, body), n=1, include_usage=False, chat=True)[0]
            return text, http.post(CHAT, json=body).json()["choices"][0]["message"]["content"]

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            for forced, got in pool.map(one, range(64)):
                assert got == forced


def test_b67_a_reader_that_stops_reading_holds_nothing_up_and_is_not_read_ahead_of(
    live: Live, http: httpx.Client, engine: FakeEngine
) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True}).encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(live.address)
        engine.tokens_per_step = 1
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        slow.sendall(head.encode() + body)
        wait_for(lambda: len(engine.submitted) == 1 and engine.steps > 50)
        steps = -1
        while steps != engine.steps:  # the socket's buffers fill, then the engine's news are left where they are
            steps = engine.steps
            check_complete(stream(http, CHAT, ask(CHAT, "say:x|")), n=1, include_usage=False, chat=True)
            steps += 2  # the two steps of the request in between
        assert engine.steps < 8189, "the whole reply was buffered for a reader that reads nothing"
    wait_for(lambda: engine.active == set())


def test_b67_news_of_one_batch_become_one_chunk(http: httpx.Client, engine: FakeEngine) -> None:
    engine.tokens_per_step = 100
    data = stream(http, CHAT, ask(CHAT))
    assert len(data) == 4  # role, text, finish, [DONE]


def test_streams_are_not_collected_by_proxies_or_caches(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**ask(CHAT), "stream": True})
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-length" not in reply.headers
    assert events(reply.text)
