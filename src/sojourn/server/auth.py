"""API keys: every path needs one unless it is on the short open list. Never logs or shows a key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from sojourn.errors import Unauthorized

OPEN_PATHS = frozenset({"/", "/health", "/ready"})
OPEN_PREFIX = "/static/"


class ApiKeys:
    """Deny by default. Decides by the decoded path the router will see, so there is no second spelling to slip
    through."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"} and not self._allowed(scope):
            raise Unauthorized("Missing or wrong API key. Send it as the header Authorization: Bearer <key>.")
        await self.app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        if not self._digests:
            return True
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return True
        scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        given = hashlib.sha256(key.strip()).digest()
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]  # all of them: equal time for each
        return any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
