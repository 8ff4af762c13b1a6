"""A server in the test's own loop that answers every request with given bytes, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sojourn.bench.exchange import Endpoint

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def reply(*texts: str, usage: dict[str, Any] | None = USAGE, done: bool = True) -> list[bytes]:
    """The pieces of a streamed completion, each event in two."""
    events = [event({"choices": [{"text": text, "finish_reason": None}]}) for text in texts]
    events.append(event({"choices": [{"text": "", "finish_reason": "length"}]}))
    if usage is not None:
        events.append(event({"choices": [], "usage": usage}))
    pieces = [part for each in events for part in (each[:9], each[9:])] + [b"data: [DONE]\n\n"] * done
    return [HEAD, *map(chunk, pieces), chunk(b"")]


class Canned:
    """`pieces` are written one by one with `pause` seconds in between."""

    def __init__(self, pieces: Sequence[bytes], pause: float = 0.0) -> None:
        self.pieces = pieces
        self.pause = pause
        self.bodies: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._now = 0
        self._tasks: list[asyncio.Task[None] | None] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.current_task())
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if length:
            self.bodies.append(json.loads(await reader.readexactly(length)))
        for piece in self.pieces:
            if b"[DONE]" in piece:
                self._now -= 1
            writer.write(piece)
            await asyncio.sleep(self.pause)
        writer.close()

    async def end(self) -> None:
        """Waits until every answer was written and its connection is gone."""
        await asyncio.gather(*(task for task in self._tasks if task is not None))
        await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(canned: Canned) -> AsyncIterator[Endpoint]:
    server = await asyncio.start_server(canned.answer, "127.0.0.1", 0)
    try:
        yield Endpoint(*server.sockets[0].getsockname())
    finally:
        server.close()
        await canned.end()
