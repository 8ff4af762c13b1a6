"""Reads a reply stream as bytes on the wire and checks its order of events. Used by several test files."""

from __future__ import annotations

import json
from typing import Any

import httpx


def events(text: str) -> list[str]:
    """The data of each event. Fails on anything that is not `data: ...` and a blank line."""
    assert text.endswith("\n\n")
    frames = text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [frame.removeprefix("data: ") for frame in frames]


def stream(http: httpx.Client, path: str, body: dict[str, Any]) -> list[str]:
    reply = http.post(path, json={"model": "fake-model", "stream": True, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events(reply.text)


def check_complete(data: list[str], *, n: int, include_usage: bool, chat: bool) -> list[str]:
    """A state machine over a whole stream; returns the text of each choice."""
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    chunks = [json.loads(item) for item in data[:-1]]
    assert len({(c["id"], c["object"], c["created"], c["model"]) for c in chunks}) == 1
    if include_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert all(c.get("usage") is None for c in chunks)
    texts = [""] * n
    started, finished = [False] * n, [False] * n
    for chunk in chunks:
        (choice,) = chunk["choices"]
        index = choice["index"]
        assert not finished[index], "news after the finish"
        if chat:
            assert ("role" in choice["delta"]) is not started[index]
            text = choice["delta"].get("content", "")
            assert text or not started[index] or choice["finish_reason"], "an empty delta"
            assert not ("role" in choice["delta"] and choice["finish_reason"]), "a finish on the role chunk"
        else:
            text = choice["text"]
            assert text or choice["finish_reason"], "an empty delta"
        started[index] = True
        texts[index] += text
        finished[index] = choice["finish_reason"] is not None
    assert all(finished)
    return texts
