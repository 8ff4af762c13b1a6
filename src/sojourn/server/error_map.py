"""The one mapping from exceptions to HTTP: status, headers and `{"error": {...}}`. Owns no state; never quotes a
prompt.

`ErrorBoundary` is the outermost catch, so that every request gets an answer in this shape.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sojourn import errors
from sojourn.server.lifeline import ClientGoneError
from sojourn.server.request_ids import RequestIds

logger = logging.getLogger("sojourn.server")

MAX_MESSAGE_CHARS = 800  # enough for any message of ours; a template's own may be longer
MAX_BODY_BYTES = 4096
MAX_PARAM_CHARS = 64
CLIENT_GONE_STATUS = 499

_STATUS: tuple[tuple[type[errors.SojournError], int], ...] = (  # first match wins: subclasses before their parents
    (errors.Unauthorized, 401),
    (errors.NotFound, 404),
    (errors.PayloadTooLarge, 413),
    (errors.UnsupportedMediaType, 415),
    (errors.QueueFull, 429),
    (errors.ClientError, 400),
    (errors.RequestTimeout, 504),
    (errors.Unavailable, 503),
    (errors.SojournError, 500),
)

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 408: "request_timeout", 413: "payload_too_large"}


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as HTTP shows it."""

    status: int
    message: str
    param: str | None
    code: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> bytes:
        """`{"error": {...}}`, at most MAX_BODY_BYTES."""
        limit = MAX_MESSAGE_CHARS
        while True:
            message = self.message if len(self.message) <= limit else self.message[: limit - 3] + "..."
            param = self.param if self.param is None else self.param[:MAX_PARAM_CHARS]
            body = msgspec.json.encode(
                {"error": {"message": message, "type": self.type, "param": param, "code": self.code}}
            )
            if len(body) <= MAX_BODY_BYTES:
                return body
            limit //= 2

    def response(self) -> Response:
        return Response(self.body(), status_code=self.status, headers=self.headers, media_type="application/json")


def describe(error: Exception) -> Failure:
    """How HTTP shows `error`. What is not ours to explain becomes a plain 500; the log has the rest."""
    if isinstance(error, errors.SojournError):
        return _ours(error)
    if isinstance(error, RequestValidationError):
        return _validation(error)
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        code = _HTTP_CODES.get(error.status_code, "http_error")
        return Failure(error.status_code, f"{phrase}.", None, code, dict(error.headers or {}))
    return Failure(500, "The server failed to handle this request; its log says why.", None, "internal_error")


def _ours(error: errors.SojournError) -> Failure:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    headers: dict[str, str] = {}
    if isinstance(error, errors.Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, errors.QueueFull | errors.Unavailable):
        headers["retry-after"] = str(error.retry_after)
    param = error.param if isinstance(error, errors.ClientError) else None
    return Failure(status, error.message, param, error.code, headers)


def _validation(error: RequestValidationError) -> Failure:
    """The first breach only, and of pydantic's report neither the input nor the context, which quote the request."""
    first: dict[str, Any] = error.errors()[0]
    location = [part for part in first["loc"] if part != "body"]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".") or None
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_type"
    message = f"{param}: {first['msg']}." if param else f"{first['msg']}."
    return Failure(400, message, param, code)


def note(scope: Scope, failure: Failure) -> None:
    """In the request's record, if it has one."""
    record = RequestIds.of(scope).record
    if record is not None:
        record.error = failure.code


def install(app: FastAPI) -> None:
    """Answer what the framework raises in our shape."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 404:
            error = errors.NotFound(f"There is no {request.method} endpoint at this path.")
        failure = describe(error)
        note(request.scope, failure)
        return failure.response()

    async def client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE_STATUS)  # nobody reads it; the log and the metrics show it

    app.add_exception_handler(ClientGoneError, client_gone)
    for kind in (errors.SojournError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


class ErrorBoundary:
    """Turns what nothing else caught into an answer, or into a closed connection if the answer had begun."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except ClientDisconnect:
            logger.debug("client left before its request was complete")
        except Exception as error:
            failure = describe(error)
            note(scope, failure)
            if failure.code == "internal_error":
                logger.exception("unexpected error")
            if started:
                raise  # the server closes the connection, so the client sees that the answer is cut
            await failure.response()(scope, receive, send)
