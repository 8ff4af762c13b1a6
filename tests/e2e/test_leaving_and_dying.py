"""Clients that leave and an engine that dies, seen from outside (acceptance 7)."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import MICRO, Gauges
from tests.servers import Server

LONG: dict[str, Any] = {"model": "micro", "prompt": "A river", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


class Caller:
    """Sends a request on a raw socket, so that it can leave at any moment and in any way."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        address = httpx.URL(url)
        self.socket = socket.create_connection((address.host, address.port))
        request = httpx.Request("POST", f"{url}/v1/completions", json=body, headers={"Connection": "close"})
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        self.socket.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + request.read())

    def leave(self, *, reset: bool = False) -> None:
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()


def idle(gauges: Gauges) -> bool:
    return not (gauges("num_requests_running") or gauges("num_requests_waiting") or gauges("kv_blocks", state="live"))


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "not streamed"])
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
def test_b34_leaving_frees_the_blocks_at_once(server: Server, gauges: Gauges, stream: bool, reset: bool) -> None:
    gauges.until(idle, seconds=5)
    aborted = gauges("request_success_total", finished_reason="abort")
    caller = Caller(server.url(), {**LONG, "stream": stream})
    gauges.until(lambda g: g("kv_blocks", state="live") >= 2, seconds=20)
    caller.leave(reset=reset)
    gauges.until(idle, seconds=3)  # a step plus a second, on a machine that may be busy
    assert gauges("request_success_total", finished_reason="abort") == aborted + 1
    tokens = gauges("generation_tokens_total")
    time.sleep(0.3)
    assert gauges("generation_tokens_total") == tokens


def test_b35_leaving_the_queue_costs_no_prefill(server: Server, gauges: Gauges) -> None:
    gauges.until(idle, seconds=5)
    running = [Caller(server.url(), {**LONG, "prompt": f"River {i}", "stream": True}) for i in range(4)]
    gauges.until(lambda g: g("num_requests_running") == 4, seconds=20)
    computed = gauges("prompt_tokens_total")
    queued = Caller(server.url(), LONG)
    gauges.until(lambda g: g("num_requests_waiting", reason="seq_slots") == 1, seconds=10)
    queued.leave()
    gauges.until(lambda g: g("num_requests_waiting") == 0, seconds=3)
    assert gauges("num_requests_running") == 4
    assert gauges("prompt_tokens_total") == computed
    for caller in running:
        caller.leave()
    gauges.until(idle, seconds=3)


def test_b29_live_cached_and_free_add_up_under_load(server: Server, client: openai.OpenAI, gauges: Gauges) -> None:
    def work(number: int) -> None:
        body = {**LONG, "prompt": f"number {number % 5} " * 20, "max_tokens": 40, "stream": number % 2 == 0}
        caller = Caller(server.url(), body)
        if number % 3 == 0:
            time.sleep(0.02 * (number % 7))
            caller.leave(reset=number % 2 == 0)
            return
        while caller.socket.recv(65536):
            pass
        caller.leave()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(60)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert gauges("kv_blocks") == 160
        time.sleep(0.05)
    gauges.until(idle, seconds=5)
    # Cached blocks are in nobody's way: more prompt than is free is served at once.
    longest = client.completions.create(model="micro", prompt=[7] * 2040, max_tokens=8, extra_body={"ignore_eos": True})
    assert longest.usage is not None
    assert longest.usage.total_tokens == 2048


@pytest.fixture
def doomed() -> Iterator[Server]:
    running = Server(str(MICRO), "--served-model-name", "micro", "--num-kv-blocks", "160", "--no-restart")
    running.url()
    yield running
    running.kill()


def test_b59_kill_9_of_the_engine_fails_what_is_in_flight(doomed: Server) -> None:
    url = doomed.url()
    outcomes: dict[str, tuple[float, str]] = {}

    def ask(stream: bool) -> None:
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json={**LONG, "stream": stream}, timeout=30) as reply:
                text = reply.read().decode()
                outcomes[str(stream)] = time.monotonic(), f"{reply.status_code} {text[-2000:]}"
        except httpx.HTTPError as error:
            outcomes[str(stream)] = time.monotonic(), repr(error)

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
    for thread in threads:
        thread.start()
    Gauges(url).until(lambda g: g("generation_tokens_total") >= 10, seconds=20)
    killed = time.monotonic()
    os.kill(doomed.engine_pid(), signal.SIGKILL)
    for thread in threads:
        thread.join(timeout=10)
    assert doomed.end() != 0
    assert set(outcomes) == {"True", "False"}
    assert max(at for at, _ in outcomes.values()) - killed < 2
    assert '"error"' in outcomes["True"][1]
    assert "[DONE]" not in outcomes["True"][1]
    assert outcomes["False"][1].startswith(("500", "503"))


def test_b61_sigterm_lets_a_stream_finish(doomed: Server) -> None:
    with httpx.stream("POST", f"{doomed.url()}/v1/completions", json={**LONG, "stream": True}, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        doomed.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert rest[-1] == "data: [DONE]" or rest[-2] == "data: [DONE]"
    assert '"finish_reason":"length"' in "".join(rest)
    assert doomed.end() == 0
