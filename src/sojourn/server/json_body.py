"""Reads a request body as one strict JSON object. Never looks at what the fields mean.

Strict: UTF-8, no NaN or Infinity, no repeated keys, no lone surrogates, bounded nesting. Any breach is a 400 that
does not quote the body.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

from sojourn.errors import InvalidRequest, UnsupportedMediaType


class JSONRoute(APIRoute):
    """A route whose body is parsed here, so that FastAPI only validates it."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        validate_and_call = super().get_route_handler()

        async def handler(request: Request) -> Response:
            if request.method in {"POST", "PUT", "PATCH"}:
                request = await _ParsedRequest.read(request)
            return await validate_and_call(request)

        return handler


class _ParsedRequest(Request):
    """A request that was read already."""

    _raw: bytes
    _object: dict[str, Any]

    @classmethod
    async def read(cls, request: Request) -> _ParsedRequest:
        raw = await request.body()
        if raw:
            _require_json(request.headers.get("content-type", ""))
        parsed = cls(request.scope, request.receive)
        parsed._object = parse_object(raw)
        parsed._raw = raw
        return parsed

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> Any:
        return self._object


def _require_json(content_type: str) -> None:
    media_type = content_type.split(";", 1)[0].strip().lower()
    if media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    raise UnsupportedMediaType("The body must be JSON: send the header Content-Type: application/json.")


def parse_object(raw: bytes) -> dict[str, Any]:
    """The object that `raw` encodes. Raises InvalidRequest."""
    if not raw:
        raise InvalidRequest("The request body is empty; send a JSON object.", code="invalid_json")
    try:
        value = _decoder.decode(raw.decode())
        if b"\\ud" in raw or b"\\uD" in raw:
            msgspec.json.encode(value)  # escapes can smuggle in lone surrogates, which no encoder accepts
    except UnicodeError:
        raise InvalidRequest("The request body is not valid UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.", code="invalid_json") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(
            f"The request body is not valid JSON: {error.msg} ({where}).", code="invalid_json"
        ) from None
    except ValueError:
        raise InvalidRequest("The request body holds a number that is out of range.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_json")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise InvalidRequest("The request body names a key twice.", param=repeated, code="invalid_json")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"The request body holds {name}, which is not JSON.", code="invalid_json")


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
