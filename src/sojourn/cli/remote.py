"""Replies of a running server over its OpenAI API. Owns no connection between turns; standard library only."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from sojourn.errors import SojournError, StartupError
from sojourn.records import SamplingParams

TIMEOUT_S = 600.0  # between two bytes: a queued request may wait long for its first token


class RemoteChat:
    """Raises StartupError when nobody answers at `url`, or without the right key."""

    def __init__(self, url: str, api_key: str | None, params: SamplingParams) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartupError(f"--url {url} is no http address; write http://127.0.0.1:8000.")
        self._address = (parts.hostname, parts.port)
        self._secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )
        self._params = params
        self.name = self._first_model(url)

    def reply(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """Pieces of the answer as they come. Closing the iterator closes the connection, which aborts the request."""
        body = {
            "model": self.name,
            "messages": messages,
            "stream": True,
            "temperature": self._params.temperature,
            "max_tokens": self._params.max_tokens,
        }
        connection = self._connect()
        try:
            for event in _events(self._request(connection, "POST", "/v1/chat/completions", json.dumps(body))):
                if "error" in event:
                    raise SojournError(event["error"]["message"])
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""
        except (OSError, http.client.HTTPException) as error:
            raise SojournError(f"the connection broke: {error}") from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._address
        if self._secure:
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S)
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    def _first_model(self, url: str) -> str:
        connection = self._connect()
        try:
            models = json.load(self._request(connection, "GET", "/v1/models"))
            return str(models["data"][0]["id"])
        except (OSError, http.client.HTTPException) as error:
            raise StartupError(f"No server answers at {url}: {error}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise StartupError(f"What answers at {url} is no OpenAI-compatible server.") from error
        except SojournError as error:
            raise StartupError(f"{url}: {error.message}") from error
        finally:
            connection.close()

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
    ) -> http.client.HTTPResponse:
        """The response, if its status is 200; otherwise SojournError with the server's own message."""
        connection.request(method, self._prefix + path, body, self._headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise SojournError(_error_message(response))
        return response


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Data of a server-sent event stream, up to [DONE]."""
    for line in response:
        if line.startswith(b"data: "):
            data = line[6:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)


def _error_message(response: http.client.HTTPResponse) -> str:
    try:
        return f"{response.status}: {json.load(response)['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return f"{response.status} {response.reason}"
