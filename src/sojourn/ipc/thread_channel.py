"""Owns the line to an engine in a thread of this process. Carries encoded bytes, as the line to a process does."""

from __future__ import annotations

import asyncio
import queue

from sojourn.ipc.channel import ClientEnd, EngineEnd
from sojourn.ipc.messages import FromEngine, ToEngine, decode_from_engine, decode_to_engine, encode


def in_process_channel() -> tuple[ClientEnd, EngineEnd]:
    """A line inside one process. Called on the event loop that will own the client's end."""
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    client = _InProcessClientEnd(requests)
    return client, _InProcessEngineEnd(requests, client)


class _InProcessClientEnd:
    def __init__(self, requests: queue.SimpleQueue[bytes | None]) -> None:
        self._requests = requests
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._closed = False

    def send(self, message: ToEngine) -> None:
        if not self._closed:
            self._requests.put(encode(message))

    async def receive(self) -> FromEngine:
        return decode_from_engine(await self._arrived.get())

    def close(self) -> None:
        self._closed = True
        self._requests.put(None)

    def deliver(self, data: bytes) -> None:
        """Called by the engine's thread."""
        if self._closed or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, data)
        except RuntimeError:  # the loop closed after the check: nobody is left to read this
            self._closed = True


class _InProcessEngineEnd:
    def __init__(self, requests: queue.SimpleQueue[bytes | None], client: _InProcessClientEnd) -> None:
        self._requests = requests
        self._client = client

    def send(self, message: FromEngine) -> None:
        self._client.deliver(encode(message))

    def receive(self) -> ToEngine | None:
        data = self._requests.get()
        if data is None:
            self._requests.put(None)  # for good
            return None
        return decode_to_engine(data)

    def close(self) -> None:
        self._requests.put(None)
