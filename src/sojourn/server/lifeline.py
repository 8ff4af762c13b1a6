"""Ends the work for one request when its client leaves or the server must stop. Owns the reason, not the work.

The work runs in the request's own task inside `guard()`. `cut()` cancels that task at its current await, and the
guard turns the cancellation into the reason, as `asyncio.timeout` does. So a token costs no extra task, and the
engine's iterators see their ordinary cancellation and abort.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType

from starlette.types import Receive, Scope

_SCOPE_KEY = "sojourn.lifeline"


class ClientGoneError(Exception):
    """The client closed the connection; there is nobody to answer."""


async def disconnected(receive: Receive) -> None:
    """Returns when the client has closed the connection. Nobody else may call `receive` meanwhile."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Lifeline:
    """One per request. `cleanup` runs when the request is over, however it ended."""

    def __init__(self) -> None:
        self.cleanup = AsyncExitStack()
        self.cause: Exception | None = None
        self._guarded: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None

    @staticmethod
    def of(scope: Scope) -> Lifeline:
        lifeline = scope[_SCOPE_KEY]
        assert isinstance(lifeline, Lifeline)
        return lifeline

    def attach(self, scope: Scope) -> None:
        scope[_SCOPE_KEY] = self

    def cut(self, cause: Exception) -> None:
        """End the guarded work with `cause`. The first cause wins."""
        if self.cause is not None:
            return
        self.cause = cause
        if self._guarded is not None:
            self._guarded.cancel()

    def guard(self) -> _Guard:
        return _Guard(self)

    def watch(self, receive: Receive) -> None:
        """Cut when the client leaves. Call it once the body is read: from then on only the watcher may call
        `receive`."""
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._await_disconnect(receive))

    async def _await_disconnect(self, receive: Receive) -> None:
        await disconnected(receive)
        self.cut(ClientGoneError())

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        await self.cleanup.aclose()


class _Guard:
    """Raises the lifeline's cause in place of the cancellation it sent; other cancellations pass."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline

    def __enter__(self) -> None:
        if self._lifeline.cause is not None:
            raise self._lifeline.cause
        self._task = asyncio.current_task()
        assert self._task is not None
        self._before = self._task.cancelling()
        self._lifeline._guarded = self._task

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lifeline._guarded = None
        cause = self._lifeline.cause
        if cause is None or self._task is None:
            return
        # The guarded task was suspended inside the guard when it was cut, so the cancellation has arrived by now.
        if self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise cause
