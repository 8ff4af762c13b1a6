"""Start, drain and stop of a whole server process: signals, exit codes, sockets."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sojourn.config import ServerConfig
from sojourn.server import serve as serve_module
from tests.server.conftest import Live, running, wait_for
from tests.server.fake_engine import FakeEngine
from tests.server.streams import check_complete, events

CHAT = "/v1/chat/completions"
ROOT = Path(__file__).parents[2]


class Process:
    def __init__(self, options: dict[str, Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "tests.server.run_fake", str(port), json.dumps(options)]
        environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)

    def get(self, path: str) -> httpx.Response | None:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(self.url + path, trust_env=False, timeout=5)
        return None

    def wait_until(self, status: int) -> None:
        wait_for(lambda: (reply := self.get("/ready")) is not None and reply.status_code == status, seconds=20)

    def end(self, seconds: float) -> tuple[int, str]:
        output, _ = self.popen.communicate(timeout=seconds)
        return self.popen.returncode, output


@contextlib.contextmanager
def process(**options: Any) -> Iterator[Process]:
    started = Process(options)
    try:
        yield started
    finally:
        started.popen.kill()
        started.popen.communicate()


class Stream(threading.Thread):
    """Reads a streamed chat to its end."""

    def __init__(self, url: str, text: str) -> None:
        super().__init__()
        self.url, self.body = url, {"messages": [{"role": "user", "content": f"say:{text}|"}], "stream": True}
        self.status, self.reply = 0, ""
        self.begun = threading.Event()
        self.start()

    def run(self) -> None:
        with (
            httpx.Client(trust_env=False, timeout=30) as client,
            client.stream("POST", self.url + CHAT, json=self.body) as reply,
        ):
            self.status = reply.status_code
            for piece in reply.iter_text():
                self.reply += piece
                self.begun.set()


def test_b61_running_requests_finish_after_sigterm_and_new_ones_are_refused() -> None:
    with process(delay=0.02) as server:
        server.wait_until(200)
        text = "x" * 60
        stream = Stream(server.url, text)
        assert stream.begun.wait(10)
        server.popen.send_signal(signal.SIGTERM)
        server.wait_until(503)
        refused = httpx.post(server.url + CHAT, json={"messages": [{"role": "user", "content": "x"}]}, trust_env=False)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert "retry-after" in refused.headers
        stream.join()
        assert check_complete(events(stream.reply), n=1, include_usage=False, chat=True) == [text]
        code, output = server.end(10)
    assert code == 0
    assert "closed=True drained=0.0" in output


def test_b61_a_request_whose_messages_are_being_rendered_at_the_signal_is_answered() -> None:
    with process(render_delay=2.0) as server:
        server.wait_until(200)
        stream = Stream(server.url, "late")
        # The scrape is the other one.
        wait_for(lambda: re.search(r"http_requests_in_flight\S* 2", server.get("/metrics").text) is not None)
        server.popen.send_signal(signal.SIGTERM)
        stream.join()
        assert stream.status == 200
        assert check_complete(events(stream.reply), n=1, include_usage=False, chat=True) == ["late"]
        code, _ = server.end(10)
    assert code == 0


def test_b61_after_the_timeout_streams_end_with_an_error_event() -> None:
    with process(delay=0.05, shutdown_timeout=0.5) as server:
        server.wait_until(200)
        stream = Stream(server.url, "x" * 1000)
        assert stream.begun.wait(10)
        server.popen.send_signal(signal.SIGTERM)
        stream.join()
        last = json.loads(events(stream.reply)[-1])
        assert last["error"]["code"] == "draining"
        code, _ = server.end(10)
    assert code == 0


def test_b61_a_second_signal_ends_requests_now() -> None:
    with process(delay=0.05) as server:
        server.wait_until(200)
        stream = Stream(server.url, "x" * 1000)
        assert stream.begun.wait(10)
        server.popen.send_signal(signal.SIGTERM)
        server.wait_until(503)
        began = time.monotonic()
        server.popen.send_signal(signal.SIGINT)
        stream.join()
        assert json.loads(events(stream.reply)[-1])["error"]["code"] == "draining"
        code, _ = server.end(10)
        assert time.monotonic() - began < 10
    assert code == 0


def test_b61_a_request_still_queued_at_the_timeout_gets_503() -> None:
    with process(delay=3600, shutdown_timeout=0.5) as server:
        server.wait_until(200)
        stream = Stream(server.url, "x")
        wait_for(lambda: 'in_flight{model_name="fake-model"} 2' in getattr(server.get("/metrics"), "text", ""))
        server.popen.send_signal(signal.SIGTERM)
        stream.join()
        assert (stream.status, json.loads(stream.reply)["error"]["code"]) == (503, "draining")
        assert server.end(10)[0] == 0


def test_an_idle_server_stops_at_once() -> None:
    with process() as server:
        server.wait_until(200)
        server.popen.send_signal(signal.SIGTERM)
        code, output = server.end(5)
    assert code == 0
    assert "ready" in output


def test_requests_get_503_while_the_model_loads_and_a_signal_then_stops_it() -> None:
    with process(load_seconds=3600) as server:
        server.wait_until(503)
        reply = httpx.post(server.url + CHAT, json={"messages": [{"role": "user", "content": "x"}]}, trust_env=False)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "loading")
        assert server.get("/health").status_code == 200  # type: ignore[union-attr]
        server.popen.send_signal(signal.SIGTERM)
        assert server.end(5)[0] == 0


def test_a_model_that_does_not_load_ends_the_process_with_its_message() -> None:
    with process(load_seconds=0.1, load_error="truncated") as server:
        code, output = server.end(20)
    assert code == 1
    assert "truncated" in output


def test_b59_with_no_restart_a_dead_engine_ends_the_process() -> None:
    with process(dies_after=0.1, no_restart=True) as server:
        code, output = server.end(20)
    assert code == 1
    assert "closed=True" in output


def test_b66_headers_that_never_come_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "HEADER_SECONDS", 0.2)
    with running(FakeEngine()) as live, socket.create_connection(live.address) as raw:
        raw.settimeout(10)
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        assert raw.recv(1) == b""


def test_b66_headers_of_a_later_request_time_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "HEADER_SECONDS", 0.2)
    with running(FakeEngine()) as live, socket.create_connection(live.address) as raw:
        raw.settimeout(10)
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.1 200")
        raw.sendall(b"GET /health HTTP/1.1\r\n")
        while raw.recv(65536):
            pass


def test_a_slow_reply_outlives_the_header_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "HEADER_SECONDS", 0.2)
    engine = FakeEngine()
    engine.delay = 0.05
    with running(engine, ServerConfig()) as live:
        reply = httpx.post(live.url + CHAT, json={"messages": [{"role": "user", "content": "x"}]}, trust_env=False)
    assert reply.json()["choices"][0]["message"]["content"] == "Hello, world!"


def test_cutting_all_requests_ends_a_stream_with_an_error(live: Live, engine: FakeEngine) -> None:
    from sojourn.errors import Unavailable

    engine.delay = 0.01
    stream = Stream(live.url, "x" * 2000)
    assert stream.begun.wait(10)
    live.call(lambda: live.app.state.context.gate.cut_all(Unavailable("over", code="draining")))
    stream.join()
    assert json.loads(events(stream.reply)[-1])["error"]["message"] == "over"
    wait_for(lambda: len(engine.aborted) == 1)
