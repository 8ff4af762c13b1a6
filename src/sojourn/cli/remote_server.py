"""Requests to a running server, standard library only. Owner of its address and key; holds no connection."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from sojourn.errors import SojournError, StartupError

TIMEOUT_S = 600.0  # between two bytes: a queued request may wait long for its first token


class RemoteServer:
    """Raises StartupError for what is no address."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartupError(f"--url {url} is no http address; write http://127.0.0.1:8000.")
        self.url = url
        self._address = (parts.hostname, parts.port)
        self._secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )

    @contextlib.contextmanager
    def answer(self, method: str, path: str, body: str | None = None) -> Iterator[http.client.HTTPResponse]:
        """The response, if its status is 200; otherwise SojournError with the server's own message.

        Leaving the block closes the connection, which aborts what is still running.
        """
        host, port = self._address
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(host, port, timeout=TIMEOUT_S)
        try:
            connection.request(method, self._prefix + path, body, self._headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise SojournError(_error_message(response))
            yield response
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """A JSON reply. Raises StartupError when nobody answers, or somebody else."""
        try:
            with self.answer("GET", path) as response:
                return json.load(response)
        except (OSError, http.client.HTTPException) as error:
            raise StartupError(f"No server answers at {self.url}: {error}") from error
        except ValueError as error:
            raise StartupError(f"What answers at {self.url} is no OpenAI-compatible server.") from error
        except SojournError as error:
            raise StartupError(f"{self.url}: {error.message}") from error


def _error_message(response: http.client.HTTPResponse) -> str:
    try:
        return f"{response.status}: {json.load(response)['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return f"{response.status} {response.reason}"
