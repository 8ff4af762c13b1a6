"""Owns the two ends of the line between A and B as interfaces, and the in-process line. Never interprets a message.

Both directions keep their order and lose nothing while both ends live. Both implementations carry encoded bytes,
so an engine in a thread sees exactly what an engine in a process would see.
"""

from __future__ import annotations

import asyncio
import queue
from typing import Protocol

from sojourn.ipc.messages import FromEngine, ToEngine, decode_from_engine, decode_to_engine, encode


class ClientEnd(Protocol):
    """Process A's end. Used on the event loop only."""

    def send(self, message: ToEngine) -> None:
        """Queues the message and returns at once. After the engine's death it goes nowhere."""

    async def receive(self) -> FromEngine:
        """The next message; waits for ever after the engine's death. Raises msgspec.DecodeError on foreign bytes."""

    def close(self) -> None:
        """Idempotent. What was not delivered yet is dropped."""


class EngineEnd(Protocol):
    """Process B's end. `send` and `close` belong to the busy loop's thread, `receive` to the receive thread."""

    def send(self, message: FromEngine) -> None:
        """Queues the message and returns at once. After A's death it goes nowhere."""

    def receive(self) -> ToEngine | None:
        """Blocks for the next message; None once `close` was called. Raises msgspec.DecodeError on foreign bytes."""

    def close(self) -> None:
        """Waits a moment for messages on their way out, then ends `receive`."""


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
        return None if data is None else decode_to_engine(data)

    def close(self) -> None:
        self._requests.put(None)
