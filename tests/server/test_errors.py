"""The error shape, on every way to go wrong."""

from __future__ import annotations

import json
import socket

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn import errors
from sojourn.server.error_map import describe
from tests.server.conftest import Live, wait_for
from tests.server.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "hi"}]}
JSON = {"content-type": "application/json"}


def error_of(reply: httpx.Response) -> dict[str, str | None]:
    assert reply.headers["content-type"] == "application/json"
    assert len(reply.content) <= 4096
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


MALFORMED = {
    "empty": b"",
    "open brace": b"{",
    "array": b"[]",
    "null": b"null",
    "number": b"1",
    "string": b'"text"',
    "not UTF-8": b"\xff\xfe",
    "GBK": '{"prompt": "你好"}'.encode("gbk"),
    "duplicate key": b'{"messages": [], "messages": []}',
    "nested duplicate key": b'{"messages": [{"role": "user", "role": "user", "content": "x"}]}',
    "deep array": b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep object": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "huge integer": b'{"seed": ' + b"9" * 5000 + b"}",
    "lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "BOM": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_b47_malformed_bodies_are_400(http: httpx.Client, path: str, body: bytes) -> None:
    reply = http.post(path, content=body, headers=JSON)
    assert reply.status_code == 400
    error_of(reply)


def test_b47_a_repeated_key_among_very_many_is_found_without_comparing_each_with_each(http: httpx.Client) -> None:
    names = [*range(200_000), 199_999]
    body = b'{"a": {' + b", ".join(b'"%d": 1' % name for name in names) + b"}}"
    reply = http.post(CHAT, content=body, headers=JSON, timeout=20)
    assert reply.status_code == 400
    assert error_of(reply)["param"] == "199999"


def test_b47_a_good_request_is_answered_after_every_bad_one(http: httpx.Client) -> None:
    for body in MALFORMED.values():
        http.post(CHAT, content=body, headers=JSON)
    assert http.post(CHAT, json=GOOD).json()["choices"][0]["message"]["content"] == "Hello, world!"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_b47_a_body_that_is_not_declared_as_json_is_415(http: httpx.Client, content_type: str) -> None:
    reply = http.post(CHAT, content=json.dumps(GOOD), headers={"content-type": content_type})
    assert reply.status_code == 415
    assert error_of(reply)["code"] == "unsupported_media_type"


def test_a_charset_in_the_content_type_is_fine(http: httpx.Client) -> None:
    reply = http.post(CHAT, content=json.dumps(GOOD), headers={"content-type": "application/json; charset=utf-8"})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "path", ["/nope", "/v1", "/v1/chat", "/v1/models/", "//v1/models", "/v1/embeddings", "/static/x"]
)
def test_b46_unknown_paths_are_404(http: httpx.Client, path: str) -> None:
    reply = http.get(path)
    assert reply.status_code == 404
    error_of(reply)


@pytest.mark.parametrize(("method", "path"), [("GET", CHAT), ("DELETE", "/v1/models"), ("POST", "/health")])
def test_b46_a_wrong_method_is_405_with_allow(http: httpx.Client, method: str, path: str) -> None:
    reply = http.request(method, path)
    assert reply.status_code == 405
    assert reply.headers["allow"]
    assert error_of(reply)["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "name", ["nope", "../../etc/passwd", "/etc/passwd", "..%2f..%2fetc", "x" * 5000, "fake-model\n"]
)
def test_b90_a_model_name_is_only_compared(http: httpx.Client, name: str) -> None:
    reply = http.post(CHAT, json={**GOOD, "model": name})
    assert reply.status_code == 404
    error = error_of(reply)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_b46_what_is_not_http_is_400_too(live: Live) -> None:
    with socket.create_connection(live.address) as raw:
        raw.sendall(b"BREW /tea HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = raw.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_request"


def test_b90_encoded_slashes_in_a_model_path_are_404(http: httpx.Client) -> None:
    reply = http.get("/v1/models/..%2f..%2fetc")
    assert reply.status_code == 404
    assert error_of(reply)["code"] == "model_not_found"


def test_queue_full_is_429_with_retry_after(http: httpx.Client, engine: FakeEngine) -> None:
    engine.refuse = lambda request_id: errors.QueueFull("full", retry_after=7)
    reply = http.post(CHAT, json=GOOD)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
    assert error_of(reply)["code"] == "queue_full"


def test_a_refused_prompt_takes_back_those_admitted_before_it(http: httpx.Client, engine: FakeEngine) -> None:
    engine.refuse = lambda request_id: errors.QueueFull("full") if request_id.endswith("-2") else None
    reply = http.post("/v1/completions", json={"prompt": ["a", "b", "c", "d"]})
    assert reply.status_code == 429
    wait_for(lambda: engine.active == set())
    assert len(engine.aborted) == 2


def test_an_unexpected_exception_is_a_plain_500(http: httpx.Client, engine: FakeEngine) -> None:
    engine.template_error = ZeroDivisionError("secret")
    reply = http.post(CHAT, json=GOOD)
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert error_of(reply)["code"] == "internal_error"
    assert "x-request-id" in reply.headers


@pytest.mark.parametrize("stream", [False, True])
def test_b01_a_template_that_refuses_is_400_before_any_event(
    http: httpx.Client, engine: FakeEngine, stream: bool
) -> None:
    engine.template_error = errors.InvalidRequest("roles must alternate", param="messages")
    reply = http.post(CHAT, json={**GOOD, "stream": stream})
    assert reply.status_code == 400
    assert error_of(reply)["message"] == "roles must alternate"


def test_b02_without_a_chat_template_the_error_names_the_flag(http: httpx.Client, engine: FakeEngine) -> None:
    engine.chat_template = None
    reply = http.post(CHAT, json=GOOD)
    assert reply.status_code == 400
    assert "--chat-template" in str(error_of(reply)["message"])
    assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "my secret"}], "temperature": "my secret"},
        {"messages": "my secret"},
        {"messages": [{"role": "user", "content": {"my secret": 1}}]},
        {"messages": ["my secret"]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ["my secret"]}]}]},
    ],
)
def test_an_error_never_quotes_the_prompt(http: httpx.Client, body: object) -> None:
    reply = http.post(CHAT, json=body)
    assert reply.status_code == 400
    assert "secret" not in reply.text


def test_a_type_error_names_the_field(http: httpx.Client) -> None:
    error = error_of(http.post(CHAT, json={**GOOD, "top_k": "many"}))
    assert (error["param"], error["code"]) == ("top_k", "invalid_type")
    error = error_of(http.post(CHAT, json={}))
    assert (error["param"], error["code"]) == ("messages", "missing_required_parameter")


@given(st.text(), st.text())
def test_an_error_body_is_at_most_4_kb_and_valid_json(message: str, param: str) -> None:
    error = errors.InvalidRequest(message * 2000, param=param * 500)
    body = describe(error).body()
    assert len(body) <= 4096
    json.loads(body)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequest("x"), 400),
        (errors.ContextLengthExceeded("x"), 400),
        (errors.Unsupported("x"), 400),
        (errors.Unauthorized("x"), 401),
        (errors.NotFound("x"), 404),
        (errors.PayloadTooLarge("x"), 413),
        (errors.UnsupportedMediaType("x"), 415),
        (errors.QueueFull("x"), 429),
        (errors.RequestFailed("x"), 500),
        (errors.RequestTimeout("x"), 504),
        (errors.Unavailable("x"), 503),
        (errors.StartupError("x"), 500),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_of_the_tree_has_its_status(error: errors.SojournError, status: int) -> None:
    assert describe(error).status == status
