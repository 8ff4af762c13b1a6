"""Server-sent events: frames as bytes, and the response that sends them. Owner of a stream's order of events; knows
no endpoint.

After the last chunk comes `[DONE]`. After a failure comes one `error` event and the end, without `[DONE]`, so a cut
answer never looks whole.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from sojourn.server.error_map import describe, note
from sojourn.server.generation import Batch, Generation
from sojourn.server.lifeline import ClientGoneError, Lifeline
from sojourn.server.request_ids import RequestIds, body_send
from sojourn.timeline.records import RequestRecord

logger = logging.getLogger("sojourn.server")

DONE = b"data: [DONE]\n\n"

encode_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode


class ChunkEncoder(Protocol):
    """One endpoint's chunks. Holds the state of the choices of one stream."""

    def encode(self, batch: Batch) -> bytes:
        """The frames for this news, b"" if there is nothing to show yet."""
        ...

    def finish(self, timings: Mapping[str, Any] | None) -> bytes:
        """The frames after the last choice has finished, with DONE. `timings`: what the last chunk is to carry."""
        ...


def error_frame(error: Exception) -> bytes:
    return b"data: " + describe(error).body() + b"\n\n"


class ServerSentEvents(Response):
    """What every stream of events is to HTTP."""

    def __init__(self) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},  # proxies must not collect events
        )
        del self.headers["content-length"]


class EventStream(ServerSentEvents):
    """Sends a generation's chunks as they come.

    While the socket is blocked nothing is taken from the generation, whose news merge meanwhile: what waits for a slow
    reader is bounded by what its own max_tokens allow.
    """

    def __init__(
        self,
        generation: Generation,
        encoder: ChunkEncoder,
        first: Batch,
        lifeline: Lifeline,
        *,
        record: RequestRecord | None,
        timings: Callable[[], Mapping[str, Any] | None],
    ) -> None:
        """`timings` is asked at the end."""
        super().__init__()
        self._generation = generation
        self._encoder = encoder
        self._first = first
        self._lifeline = lifeline
        self._record = record
        self._timings = timings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        send = body_send(scope)
        try:
            with self._lifeline.guard():
                # In a task of its own, since waking this one passes through every layer around it.
                await asyncio.create_task(self._send_all(send))
        except ClientGoneError:
            if self._record is not None:
                self._record.client_left = True
            return
        except Exception as error:
            _log_failure(RequestIds.of(scope), error)
            note(scope, describe(error))
            await send({"type": "http.response.body", "body": error_frame(error), "more_body": True})
        finally:
            await self._generation.close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        encode, record = self._encoder.encode, self._record
        await _send(send, encode(self._first), record)
        async for batch in self._generation:
            await _send(send, encode(batch), record)
        await _send(send, self._encoder.finish(self._timings()), None)


def _log_failure(ids: RequestIds, error: Exception) -> None:
    """The access line will say 200, as the status was sent before."""
    failure = describe(error)
    unexpected = error if failure.code == "internal_error" else None
    logger.error("%s ended in mid-stream: %s %s", ids.reply_id, failure.code, failure.message, exc_info=unexpected)


async def _send(send: Send, data: bytes, record: RequestRecord | None) -> None:
    if not data:
        return
    began_ns = time.monotonic_ns()
    await send({"type": "http.response.body", "body": data, "more_body": True})
    if record is not None:
        record.wrote(began_ns, time.monotonic_ns())
