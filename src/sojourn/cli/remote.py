"""Replies of a running server over its OpenAI API. Owns no connection between turns."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

from sojourn.cli.remote_server import RemoteServer
from sojourn.errors import SojournError, StartupError
from sojourn.records import SamplingParams


class RemoteChat:
    """Raises StartupError when nobody answers at `url`, or without the right key."""

    def __init__(self, url: str, api_key: str | None, params: SamplingParams) -> None:
        self._server = RemoteServer(url, api_key)
        self._params = params
        try:
            self.name = str(self._server.get("/v1/models")["data"][0]["id"])
        except (LookupError, TypeError) as error:
            raise StartupError(f"What answers at {url} is no OpenAI-compatible server.") from error

    def reply(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """Pieces of the answer as they come. Closing the iterator closes the connection, which aborts the request."""
        body = {
            "model": self.name,
            "messages": messages,
            "stream": True,
            "temperature": self._params.temperature,
            "max_tokens": self._params.max_tokens,
        }
        try:
            with self._server.answer("POST", "/v1/chat/completions", json.dumps(body)) as response:
                for event in _events(response):
                    if "error" in event:
                        raise SojournError(event["error"]["message"])
                    for choice in event["choices"]:
                        yield choice["delta"].get("content") or ""
        except (OSError, http.client.HTTPException) as error:
            raise SojournError(f"the connection broke: {error}") from error


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Data of a server-sent event stream, up to [DONE]."""
    for line in response:
        if line.startswith(b"data: "):
            data = line[6:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)
