"""Gives every request an id, its reply an `x-request-id`, the log one line and the metrics one count. Owns no
request's state.

A client's own id is echoed if it is harmless. The engine never sees it: its ids are always ours, so equal client ids
can't collide.
"""

from __future__ import annotations

import logging
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sojourn.timeline.metrics import Metrics
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.records import RequestRecord

logger = logging.getLogger("sojourn.server")

MAX_ID_CHARS = 128
_SCOPE_KEY = "sojourn.request_ids"
_SEND_KEY = "sojourn.send"


class RequestIds:
    """`client_id` is what the header says; `reply_id` is the `id` of the reply and of the engine's request, once
    there is one."""

    __slots__ = ("arrival_ns", "client_id", "own_id", "record", "reply_id")

    def __init__(self, client_id: str | None, arrival_ns: int) -> None:
        self.own_id = uuid.uuid4().hex
        self.client_id = client_id or self.own_id
        self.reply_id: str | None = None
        self.arrival_ns = arrival_ns
        self.record: RequestRecord | None = None  # of a request for generation

    @staticmethod
    def of(scope: Scope) -> RequestIds:
        ids = scope[_SCOPE_KEY]
        assert isinstance(ids, RequestIds)
        return ids

    def for_reply(self, prefix: str) -> str:
        self.reply_id = f"{prefix}-{self.own_id}"
        return self.reply_id


def acceptable(raw: bytes) -> str | None:
    """The client's id as text if it is 1 to 128 printable ASCII characters, else None."""
    if 0 < len(raw) <= MAX_ID_CHARS and all(0x21 <= byte <= 0x7E for byte in raw):
        return raw.decode("ascii")
    return None


def body_send(scope: Scope) -> Send:
    """`send` for the body of an answer whose start went the ordinary way: past the layers in between, which look at
    nothing else and take longer for an event than all that makes it."""
    send: Send = scope[_SEND_KEY]
    return send


class RequestIdHeader:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, metrics: Metrics, recorder: Recorder | None) -> None:
        self.app = app
        self.metrics = metrics
        self.recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        ids = RequestIds(acceptable(dict(scope["headers"]).get(b"x-request-id", b"")), time.monotonic_ns())
        scope[_SCOPE_KEY] = ids
        scope[_SEND_KEY] = send
        status = 499  # nothing was sent: the client left first

        async def tagging_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", ids.client_id.encode("ascii"))]
            elif ids.record is not None and not ids.record.streamed and status < 400:  # a stream stamps its own
                began_ns = time.monotonic_ns()
                await send(message)
                ids.record.wrote(began_ns, time.monotonic_ns())
                return
            await send(message)

        self.metrics.http_began()
        try:
            await self.app(scope, receive, tagging_send)
        finally:
            handler = getattr(scope.get("route"), "path", "none")
            self.metrics.http_ended(scope["method"], handler, status)
            if self.recorder is not None and ids.record is not None:
                self.recorder.end(ids.record, status)
            _log(scope, ids, status)


def _log(scope: Scope, ids: RequestIds, status: int) -> None:
    level = logging.DEBUG if scope["path"] in {"/health", "/ready", "/metrics"} else logging.INFO
    if logger.isEnabledFor(level):
        milliseconds = (time.monotonic_ns() - ids.arrival_ns) / 1e6
        path = (
            scope["path"].encode("ascii", "backslashreplace").decode().replace("\n", "\\n").replace("\r", "\\r")[:200]
        )
        names = f"{ids.reply_id or '-'} x-request-id={ids.client_id}"
        logger.log(level, "%s %s %d %.1f ms %s", scope["method"], path, status, milliseconds, names)
