"""`sojourn serve` from start to exit, with the default model from the cache, in both arrangements of processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from tests.servers import Server


@pytest.fixture(scope="module", params=["two processes", "in process"])
def server(request) -> Iterator[Server]:
    args = ["--in-process"] if request.param == "in process" else []
    running = Server("smollm2:135m", "--kv-cache-memory", "100MB", "--served-model-name", "small", *args)
    yield running
    running.kill()


def call(url: str, body: object | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_port_0_prints_the_real_port_and_answers_there(server):
    assert call(server.url() + "/v1/models")["data"][0]["id"] == "small"


def test_a_chat_is_answered(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    reply = call(server.url() + "/v1/chat/completions", body)
    assert reply["choices"][0]["message"]["content"]
    assert reply["usage"]["completion_tokens"] == 4


def test_the_screen_names_what_was_settled(server):
    server.url()
    screen = server.output
    for fact in (
        "smollm2:135m (llama, 135M parameters), served as small",
        "Q4_1",
        "tokens (",
        "blocks of 32",
        "/ (requests, steps, KV blocks, live)",
        "compute",
    ):
        assert fact in screen
    assert screen.count("\n") < 24


def test_sojourn_chat_talks_to_it(server, sojourn, command):
    typed = subprocess.run(
        [*command, "chat", "--url", server.url(), "-n", "4"],
        check=True,
        capture_output=True,
        text=True,
        input="Hi\n/exit\n",
        timeout=60,
    )
    assert re.search(r"> \S.*\n> ", typed.stdout)


def test_b63_a_second_server_on_its_port_is_refused_at_once(server, sojourn):
    port = server.url().rsplit(":", 1)[1]
    ran = sojourn("serve", "--port", port)
    assert (ran.code, ran.seconds < 2) == (1, True)
    assert port in ran.err


def test_sigterm_ends_it_with_exit_code_0(server):
    server.url()
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert "Traceback" not in server.output


def test_no_restart_exits_non_zero_when_the_engine_dies():
    server = Server("--no-restart", "--kv-cache-memory", "100MB")
    try:
        server.url()
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert server.end() == 1
    finally:
        server.kill()


@pytest.mark.parametrize("kind", ["missing", "empty directory", "only a tokenizer", "text named gguf"])
def test_b64_a_wrong_model_path_is_one_line_without_the_network(sojourn, tmp_path, kind):
    path = tmp_path / "x.gguf"
    if kind == "text named gguf":
        path.write_text("hello")
    elif kind != "missing":
        path = tmp_path / "model"
        path.mkdir()
    if kind == "only a tokenizer":
        (path / "tokenizer.json").write_text("{}")
    # An index nobody answers at: a call over the network would take long, or fail with another message.
    ran = sojourn("serve", str(path), "--port", "0", env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert ran.code == 1
    errors = [line for line in ran.err.splitlines() if line.startswith("sojourn: ")]
    assert len(errors) == 1
    assert path.name in errors[0]
    assert "Traceback" not in ran.err


def test_an_unknown_name_says_what_names_there_are(sojourn):
    ran = sojourn("serve", "smolm2:135m", "--port", "0")
    assert ran.code == 1
    assert "smollm2:135m" in ran.err
