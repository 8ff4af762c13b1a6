"""Owns the line to an engine in a thread of this process. Carries encoded bytes, as the line to a process does."""

from __future__ import annotations

import asyncio
import queue
from collections import deque

from sojourn.ipc.channel import ClientEnd, EngineEnd, OnData
from sojourn.ipc.messages import FromEngine, ToEngine, decode_to_engine, encode


def in_process_channel() -> tuple[ClientEnd, EngineEnd]:
    """A line inside one process. Called on the event loop that will own the client's end."""
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    client = _InProcessClientEnd(requests)
    return client, _InProcessEngineEnd(requests, client)


class _InProcessClientEnd:
    def __init__(self, requests: queue.SimpleQueue[bytes | None]) -> None:
        self._requests = requests
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[bytes] = deque()  # each thread has its own end of it
        self._on_data: OnData | None = None
        self._closed = False

    def send(self, message: ToEngine) -> None:
        if not self._closed:
            self._requests.put(encode(message))

    def listen(self, on_data: OnData) -> None:
        self._on_data = on_data
        self._loop.call_soon(self._pass_on)

    def close(self) -> None:
        self._closed = True
        self._requests.put(None)

    def deliver(self, data: bytes) -> None:
        """Called by the engine's thread."""
        if self._closed or self._loop.is_closed():
            return
        self._arrived.append(data)
        try:
            self._loop.call_soon_threadsafe(self._pass_on)
        except RuntimeError:  # the loop closed after the check: nobody is left to read this
            self._closed = True

    def _pass_on(self) -> None:
        """Only as much as there is now, or an engine that goes on sending meanwhile could keep the loop in here."""
        if self._on_data is None or self._closed:
            return
        for _ in range(len(self._arrived)):
            self._on_data(self._arrived.popleft())


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
