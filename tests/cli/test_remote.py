"""`sojourn chat --url`: what goes over the wire to a server, and what its failures look like."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sojourn.cli.remote import RemoteChat
from sojourn.errors import SojournError, StartupError
from sojourn.records import SamplingParams

PARAMS = SamplingParams(temperature=0.5, max_tokens=9)


class Handler(BaseHTTPRequestHandler):
    """A server with one model "m" that answers every chat with `events`."""

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen = (self.path, json.loads(body), self.headers.get("Authorization"))
        self._send(self.server.status, b"".join(self.server.events))

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Quiet."""


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def delta(text: str) -> bytes:
    return event({"choices": [{"delta": {"content": text}}]})


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.status, running.events, running.seen = 200, [], None
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def url(server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_the_reply_comes_in_pieces_and_the_request_is_a_streamed_chat(server):
    server.events = [
        event({"choices": [{"delta": {"role": "assistant"}}]}),
        delta("He"),
        delta("llo"),
        event(b"[DONE]"),
    ]
    chat = RemoteChat(url(server), "secret", PARAMS)
    messages = [{"role": "user", "content": "hi"}]
    assert chat.name == "m"
    assert [piece for piece in chat.reply(messages) if piece] == ["He", "llo"]
    path, body, key = server.seen
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body == {"model": "m", "messages": messages, "stream": True, "temperature": 0.5, "max_tokens": 9}


def test_a_base_url_with_v1_is_understood(server):
    server.events = [event(b"[DONE]")]
    assert list(RemoteChat(url(server) + "/v1", None, PARAMS).reply([])) == []
    assert server.seen[0] == "/v1/chat/completions"


def test_an_error_in_mid_stream_is_raised(server):
    server.events = [delta("He"), event({"error": {"message": "engine lost"}})]
    pieces = RemoteChat(url(server), None, PARAMS).reply([])
    assert next(pieces) == "He"
    with pytest.raises(SojournError, match="engine lost"):
        next(pieces)


def test_a_refusal_carries_the_servers_own_words(server):
    server.status, server.events = 429, [json.dumps({"error": {"message": "queue full"}}).encode()]
    with pytest.raises(SojournError, match="429: queue full"):
        list(RemoteChat(url(server), None, PARAMS).reply([]))


def test_nobody_there_is_one_clear_line():
    with pytest.raises(StartupError, match=r"No server answers at http://127\.0\.0\.1:9"):
        RemoteChat("http://127.0.0.1:9", None, PARAMS)


@pytest.mark.parametrize("address", ["ftp://x", "http://"])
def test_what_is_no_http_address_is_refused(address):
    with pytest.raises(StartupError, match="no http address"):
        RemoteChat(address, None, PARAMS)
