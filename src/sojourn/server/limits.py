"""Bounds a request's body in size and in time before anything buffers it. Owns only the count of the body it
watches."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sojourn.errors import PayloadTooLarge

MAX_BODY_BYTES = 32 * 2**20
BODY_STALL_SECONDS = 60.0


class BodyLimit:
    """Refuses by Content-Length at once, and counts what really arrives, so chunked bodies and false lengths don't
    pass."""

    def __init__(
        self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES, stall_seconds: float = BODY_STALL_SECONDS
    ) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.max_bytes:
            raise self._too_large()
        seen = 0
        complete = False

        async def limited_receive() -> Message:
            nonlocal seen, complete
            if complete:
                return await receive()
            message = await self._receive_in_time(receive)
            complete = not message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > self.max_bytes:
                raise self._too_large()
            return message

        await self.app(scope, limited_receive, send)

    async def _receive_in_time(self, receive: Receive) -> Message:
        try:
            async with asyncio.timeout(self.stall_seconds):
                return await receive()
        except TimeoutError:
            raise HTTPException(408) from None

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"The request body is larger than {self.max_bytes} bytes.")
