"""A client that leaves frees its request, in every mode and state, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from typing import Any

import httpx
import pytest

from sojourn.server.lifeline import ClientGoneError, Lifeline
from tests.server.conftest import Live, wait_for
from tests.server.fake_engine import FakeEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG: dict[str, Any] = {"ignore_eos": True, "max_tokens": 4096}


def send(live: Live, path: str, body: dict[str, Any]) -> socket.socket:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    raw = socket.create_connection(live.address)
    raw.sendall(head.encode() + data)
    return raw


def leave(raw: socket.socket, how: str) -> None:
    if how == "half-closed":
        raw.shutdown(socket.SHUT_WR)
    elif how == "reset":
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
    else:
        raw.close()


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {**prompt, **LONG, **fields}


@pytest.mark.parametrize("how", ["closed", "half-closed", "reset"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_b34_a_disconnect_while_decoding_aborts(
    live: Live, engine: FakeEngine, path: str, stream: bool, how: str
) -> None:
    engine.delay = 0.002
    raw = send(live, path, body_for(path, stream=stream, n=2))
    wait_for(lambda: engine.steps > 3)
    leave(raw, how)
    wait_for(lambda: engine.active == set(), seconds=1.0)
    assert engine.aborted == [engine.submitted[0].request_id]
    wait_for(lambda: live.app.state.context.gate.in_flight == 0)
    raw.close()


@pytest.mark.parametrize("stream", [False, True])
def test_b35_a_disconnect_before_the_first_token_aborts(live: Live, engine: FakeEngine, stream: bool) -> None:
    engine.delay = 3600.0  # as a request that waits in the queue
    raw = send(live, CHAT, body_for(CHAT, stream=stream))
    wait_for(lambda: len(engine.submitted) == 1)
    raw.close()
    wait_for(lambda: engine.active == set(), seconds=1.0)
    assert engine.steps == 0


def test_b36_a_disconnect_while_the_template_renders_submits_nothing(live: Live, engine: FakeEngine) -> None:
    engine.render_delay = 0.3
    gate = live.app.state.context.gate
    raw = send(live, CHAT, body_for(CHAT))
    wait_for(lambda: gate.in_flight == 1)
    raw.close()
    wait_for(lambda: gate.in_flight == 0)
    assert engine.submitted == []


def test_b36_all_prompts_of_a_request_are_aborted(live: Live, engine: FakeEngine) -> None:
    engine.delay = 0.002
    raw = send(live, COMPLETIONS, {"prompt": ["a", "b", "c"], "stream": True, "n": 2, **LONG})
    wait_for(lambda: engine.steps > 10)
    raw.close()
    wait_for(lambda: engine.active == set(), seconds=1.0)
    assert len(engine.aborted) == 3


def test_b36_a_client_that_leaves_during_the_upload_is_no_error(
    live: Live, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(live.address) as raw:
        raw.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n".encode())
        wait_for(lambda: live.app.state.context.gate.in_flight == 1)
    wait_for(lambda: live.app.state.context.gate.in_flight == 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_b38_the_others_text_is_untouched(live: Live, http: httpx.Client, engine: FakeEngine) -> None:
    engine.delay = 0.002
    texts: list[str] = []

    def survivor(text: str) -> None:
        body = {"messages": [{"role": "user", "content": f"say:{text}|"}]}
        texts.append(http.post(CHAT, json=body).json()["choices"][0]["message"]["content"])

    forced = ["a" * 60, "b" * 60]
    threads = [threading.Thread(target=survivor, args=(text,)) for text in forced]
    for thread in threads:
        thread.start()
    leavers = [send(live, CHAT, body_for(CHAT, stream=bool(i))) for i in range(2)]
    wait_for(lambda: len(engine.submitted) == 4)
    for raw in leavers:
        raw.close()
    for thread in threads:
        thread.join()
    assert sorted(texts) == forced
    wait_for(lambda: len(engine.aborted) == 2)


def test_a_finished_request_is_not_aborted(http: httpx.Client, engine: FakeEngine) -> None:
    for stream in (False, True):
        assert http.post(CHAT, json={"messages": [{"role": "user", "content": "x"}], "stream": stream}).is_success
    assert engine.aborted == []


def test_a_client_that_left_is_counted_as_499(live: Live, http: httpx.Client, engine: FakeEngine) -> None:
    engine.delay = 3600.0
    wanted = f'handler="{CHAT}",method="POST",model_name="fake-model",status="499"'
    send(live, CHAT, body_for(CHAT)).close()
    wait_for(lambda: wanted in http.get("/metrics").text)


def test_a_lifelines_guard_raises_the_cause_and_lets_other_cancellations_pass() -> None:
    async def guarded(lifeline: Lifeline) -> str:
        try:
            with lifeline.guard():
                await asyncio.sleep(3600)
        except ClientGoneError:
            await asyncio.sleep(0)  # the task is not left cancelled
            return "gone"
        return "done"

    async def main() -> None:
        lifeline = Lifeline()
        task = asyncio.create_task(guarded(lifeline))
        await asyncio.sleep(0)
        lifeline.cut(ClientGoneError())
        lifeline.cut(ValueError("too late"))
        assert await task == "gone"
        with pytest.raises(ClientGoneError), lifeline.guard():
            pytest.fail("a cut lifeline lets nothing in")
        task = asyncio.create_task(guarded(Lifeline()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
