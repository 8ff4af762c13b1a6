"""Owns one request in flight as process A sees it: its choices, what its consumer has not taken yet, and its end.

Never talks to the engine. What waits for a slow consumer is merged and bounded by the request's own max_tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Self

from sojourn.errors import SojournError
from sojourn.frontend.request_state import ChoiceDelta, ChoiceState, merge_by_choice
from sojourn.records import TokenDelta
from sojourn.timeline.records import ChoiceRecord

NO_RECORDS: Mapping[str, ChoiceRecord] = MappingProxyType({})


class Reply:
    """Filled by the dispatcher, emptied by one consumer; both on the event loop."""

    def __init__(
        self, request_id: str, choices: dict[str, ChoiceState], records: Mapping[str, ChoiceRecord] = NO_RECORDS
    ) -> None:
        """Both by engine id."""
        self.request_id = request_id
        self.unfinished = choices  # by engine id; a choice leaves when it ends
        self.timer: asyncio.TimerHandle | None = None  # --request-timeout
        self._records = records
        self._pending: list[ChoiceDelta] = []  # in order
        self._error: SojournError | None = None
        self._waiter: asyncio.Future[None] | None = None  # of the consumer, while it has nothing to do

    def push(self, engine_id: str, delta: TokenDelta, received_ns: int) -> ChoiceState:
        """Turns a delta into text for the consumer. Returns its choice, which may have ended with it."""
        choice = self.unfinished[engine_id]
        shown = choice.push(delta)
        if shown is not None:
            self._pending.append(shown)
            self._wake()
        if choice.finished:
            del self.unfinished[engine_id]
        record = self._records.get(engine_id)
        if record is not None:
            _record(record, choice, shown, received_ns)
        return choice

    def fail(self, error: SojournError) -> None:
        """The consumer gets what was ready, then the error. The first error stays."""
        self.unfinished.clear()
        self._error = self._error or error
        self._wake()

    def end(self) -> None:
        """No consumer is left."""
        self.unfinished.clear()
        self._pending.clear()
        self._wake()

    async def take(self) -> list[ChoiceDelta]:
        """Waits for news; at most one delta per choice. An empty list is the end. Raises the request's error."""
        while not self._pending:
            if self._error is not None:
                raise self._error
            if not self.unfinished:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        pending, self._pending = self._pending, []
        return pending if len(pending) == 1 else merge_by_choice(pending)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ReplyStream(AsyncIterator[list[ChoiceDelta]]):
    """The consumer's handle. Leaving it, by aclose(), cancellation or dropping it, aborts what still runs."""

    def __init__(self, reply: Reply, abort: Callable[[Reply], None]) -> None:
        self._reply = reply
        self._abort = abort
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ChoiceDelta]:
        try:
            deltas = await self._reply.take()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if not deltas:
            raise StopAsyncIteration
        return deltas

    async def aclose(self) -> None:
        """Idempotent; after the end it does nothing."""
        self._abort(self._reply)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A response whose client left before it began is dropped without ever being iterated or closed. May run in
        # any thread, at any time.
        reply = getattr(self, "_reply", None)
        if reply is not None and reply.unfinished and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abort, reply)


def _record(record: ChoiceRecord, choice: ChoiceState, shown: ChoiceDelta | None, received_ns: int) -> None:
    """The stamps of a choice's first and last news; nothing for those in between."""
    if not record.first_delta_ns:
        record.first_delta_ns = received_ns
    if shown is None:
        return
    if not record.first_text_ns:
        record.first_text_ns = time.monotonic_ns()
    if record.text is not None:
        record.text.append(shown.text)
    if choice.finished:
        record.last_delta_ns, record.last_text_ns = received_ns, time.monotonic_ns()
        record.completion_tokens, record.finish_reason = choice.num_tokens, shown.finish_reason
