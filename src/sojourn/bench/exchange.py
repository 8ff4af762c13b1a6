"""One streaming HTTP request over its own connection, with the time of every event.

It competes with the measured server for the CPU, so while the answer streams it only notes times and bytes; HTTP and
events are parsed when the answer has ended, JSON when all have.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools
import msgspec

from sojourn.bench.sse import EventParser
from sojourn.errors import StartupError

DONE = b"[DONE]"
LAST_CHUNK = b"\r\n0\r\n\r\n"
LISTED_BODY = 600  # bytes of an error's body that are kept


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an OpenAI-compatible server listens."""

    host: str
    port: int
    prefix: str = ""  # path in front of /v1
    secure: bool = False
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Endpoint:
        """`url` with or without scheme and /v1. Raises StartupError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartupError(f"--url {url} is no http address; write http://127.0.0.1:8000.")
        secure = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if secure else 80), prefix, secure, api_key)

    def request(self, method: str, path: str, body: object = None) -> bytes:
        """The bytes of a request that closes its connection."""
        data = b"" if body is None else msgspec.json.encode(body)
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            "Connection: close",
        ]
        if self.api_key is not None:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode() + data


@dataclass(slots=True)
class Recording:
    """What came back. Times are `time.perf_counter()`; `error` is None when the answer was complete."""

    sent: float = 0.0
    ended: float = 0.0
    status: int = 0
    packets: list[tuple[float, bytes]] = field(default_factory=list)  # of a stream, while they are not parsed yet
    events: list[tuple[float, bytes]] = field(default_factory=list)
    body: bytes = b""  # of an answer that is no event stream, e.g. an error
    error: str | None = None


class _Receiver(asyncio.Protocol):
    """Notes events as they come. `httptools` calls the on_... methods with what it finds in the bytes."""

    def __init__(self, recording: Recording, ended: asyncio.Future[None]) -> None:
        self.recording = recording
        self._ended = ended
        self._parser = httptools.HttpResponseParser(self)
        self._events = EventParser()
        self._is_stream = False
        self._now = 0.0  # when the packet came that is being parsed

    def data_received(self, data: bytes) -> None:
        self.recording.packets.append((time.perf_counter(), data))
        # A DONE or last chunk that is cut in two is found when the server closes the connection, as it was asked to.
        if not self._is_stream or DONE in data or data.endswith(LAST_CHUNK):
            self.parse()

    def parse(self) -> None:
        """What has come since the last call."""
        packets, self.recording.packets = self.recording.packets, []
        for self._now, data in packets:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                self._end(f"no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.parse()
        self._now = time.perf_counter()
        self._end(f"the connection broke: {exc or 'closed in mid-answer'}")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_body(self, body: bytes) -> None:
        if not self._is_stream:
            self.recording.body += body
            return
        for event in self._events.feed(body):
            if event == DONE:
                self._end(None)
            else:
                self.recording.events.append((self._now, event))

    def on_message_complete(self) -> None:
        self._end("the stream ended without [DONE]" if self._is_stream else None)

    def _end(self, error: str | None) -> None:
        if not self._ended.done():
            self.recording.status = self._parser.get_status_code()
            self.recording.ended = self._now
            self.recording.error = error
            self._ended.set_result(None)


async def exchange(
    endpoint: Endpoint, request: bytes, limit_s: float, *, recording: Recording | None = None
) -> Recording:
    """Sends `request` and waits for the whole answer. A failure is a recording with an `error`, never an exception.

    Whoever cancels this finds what had come by then in the `recording` they gave.
    """
    recording = recording or Recording()
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    context = ssl.create_default_context() if endpoint.secure else None
    receiver = _Receiver(recording, ended)
    recording.sent = time.perf_counter()
    try:
        async with asyncio.timeout(limit_s):
            transport, _ = await loop.create_connection(lambda: receiver, endpoint.host, endpoint.port, ssl=context)
            try:
                transport.write(request)
                await ended
            finally:
                receiver.parse()
                transport.abort()
    except TimeoutError:
        recording.error = f"no complete answer within {limit_s:g} s"
    except OSError as error:
        recording.error = f"no connection: {error}"
    recording.ended = recording.ended or time.perf_counter()
    return recording
