"""Who may read records, what is put into them, and what is not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from sojourn.config import ServerConfig
from sojourn.frontend.async_llm import AsyncLLM
from sojourn.timeline.recorder import Recorder
from tests.frontend.llms import scripted
from tests.server.conftest import running, wait_for
from tests.server.fake_engine import FakeEngine
from tests.server.streams import events

PATHS = ("/v1/requests", "/v1/requests/x", "/v1/steps", "/v1/events", "/v1/system")
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("path", PATHS)
def test_records_need_the_key(path: str) -> None:
    with (
        running(FakeEngine(), ServerConfig(api_key=("secret",))) as live,
        httpx.Client(base_url=live.url, timeout=10, trust_env=False) as http,
    ):
        assert http.get(path).status_code == 401


def test_a_request_without_the_key_leaves_no_record() -> None:
    recorder = Recorder()
    with (
        running(FakeEngine(), ServerConfig(api_key=("secret",)), recorder=recorder) as live,
        httpx.Client(base_url=live.url, timeout=10, trust_env=False) as http,
    ):
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 401
        assert recorder.requests() == ([], False)
        key = {"authorization": "Bearer secret"}
        assert http.post("/v1/chat/completions", json={**CHAT, "n": 0}, headers=key).status_code == 400
        assert http.post("/v1/chat/completions", content=b"{", headers=key).status_code == 415
        wait_for(lambda: not recorder.live())  # the replies are read before their senders are done
        (unread, refused), _ = recorder.requests()
        assert (refused.status, refused.error, refused.state) == (400, "invalid_value", "failed")
        assert (unread.status, unread.parsed_ns) == (415, 0)


def test_a_failure_before_the_gate_is_on_record() -> None:
    recorder = Recorder()
    with (
        running(None, recorder=recorder) as live,
        httpx.Client(base_url=live.url, timeout=10, trust_env=False) as http,
    ):
        live.app.state.context.gate.begin_drain()
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 503
        wait_for(lambda: not recorder.live())  # the reply is read before its sender is done
        ((record,), _) = recorder.requests()
        assert (record.status, record.error) == (503, "draining")


@pytest.mark.parametrize("asked", [False, True])
def test_every_reply_has_timings_if_the_server_says_so(asked: bool) -> None:
    with (
        running(FakeEngine(), ServerConfig(timings=True)) as live,
        httpx.Client(base_url=live.url, timeout=10, trust_env=False) as http,
    ):
        assert "e2e" in http.post("/v1/chat/completions", json={**CHAT, "timings": asked}).json()["timings"]
        streamed = events(http.post("/v1/chat/completions", json={**CHAT, "stream": True}).text)
        assert "e2e" in json.loads(streamed[-2])["timings"]


@pytest.mark.parametrize("record_text", [False, True])
def test_text_is_kept_only_if_the_server_says_so(record_text: bool) -> None:
    recorder = Recorder(record_text=record_text)

    @contextlib.asynccontextmanager
    async def around() -> AsyncIterator[AsyncLLM]:
        async with scripted(recorder=recorder) as (llm, _):
            yield llm

    with (
        running(None, around=around(), recorder=recorder) as live,
        httpx.Client(base_url=live.url, timeout=30, trust_env=False) as http,
    ):
        wait_for(lambda: http.get("/ready").status_code == 200)
        body = http.post("/v1/completions", json={"prompt": "keep me?", "max_tokens": 4}).json()
        text = http.get(f"/v1/requests/{body['id']}").json().get("text")
        expected = {"prompt": "keep me?", "output": body["choices"][0]["text"]} if record_text else None
        assert text == expected
