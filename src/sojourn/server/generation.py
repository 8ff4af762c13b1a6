"""One HTTP request's work in the engine: a submission per prompt, their news as one sequence, and their end. Owner
of the submissions.

Choice `c` of prompt `p` has the index `p * n + c`, as in OpenAI's completions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sojourn.errors import RequestFailed
from sojourn.records import SamplingParams, TokenLogprobs
from sojourn.server.seam import Delta, Engine
from sojourn.timeline.records import RequestRecord

Batch = list[tuple[int, Delta]]  # (choice index, its news)

_BUFFERED_BATCHES = 4  # of several prompts together; beyond it their streams wait for the reader


@dataclass(slots=True)
class Totals:
    """The numbers of `usage`. A prompt counts once, however many choices share it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    truncated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Submission:
    """One prompt, ready for the engine."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    priority: int
    cache_salt: str
    arrival_ns: int
    continues_text: bool  # the reply goes on where the prompt's text ends, as a completion does


class Generation:
    """All prompts or nothing: if `submit` refuses one, `close()` takes back those before it.

    Iterating gives batches until every choice has finished; it raises what the engine raises. `close()` aborts what
    is unfinished.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._submissions: list[Submission] = []
        self._streams: list[AsyncIterator[Sequence[Delta]]] = []
        self._unfinished: set[int] = set()
        self._pumps: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[Batch | Exception] = asyncio.Queue(_BUFFERED_BATCHES)

    def submit(self, submission: Submission, record: RequestRecord | None) -> None:
        """Raises what admission raises."""
        stream = self._engine.submit(
            submission.request_id,
            submission.prompt_ids,
            submission.params,
            priority=submission.priority,
            cache_salt=submission.cache_salt,
            arrival_ns=submission.arrival_ns,
            continues_text=submission.continues_text,
            record=record,
        )
        first = len(self._submissions) * submission.params.n
        self._submissions.append(submission)
        self._streams.append(stream)
        self._unfinished.update(range(first, first + submission.params.n))

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Batch:
        if not self._unfinished:
            raise StopAsyncIteration
        if len(self._streams) > 1:
            return await self._next_of_many()
        try:
            deltas = await anext(self._streams[0])
        except StopAsyncIteration:
            raise RequestFailed("The engine ended this request without finishing it.") from None
        batch: Batch = []
        for delta in deltas:
            batch.append((delta.index, delta))
            if delta.finish_reason is not None:
                self._unfinished.discard(delta.index)
        return batch

    async def _next_of_many(self) -> Batch:
        if not self._pumps:
            self._pumps = [asyncio.create_task(self._pump(position)) for position in range(len(self._streams))]
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        self._unfinished.difference_update(index for index, delta in item if delta.finish_reason is not None)
        return item

    async def _pump(self, position: int) -> None:
        """Carries one prompt's news to the queue until its choices have finished."""
        n = self._submissions[position].params.n
        running = n
        try:
            async for deltas in self._streams[position]:
                await self._queue.put([(position * n + delta.index, delta) for delta in deltas])
                running -= sum(delta.finish_reason is not None for delta in deltas)
                if running == 0:
                    return
            raise RequestFailed("The engine ended this request without finishing it.")
        except Exception as error:
            await self._queue.put(error)

    async def close(self) -> None:
        """Idempotent. Safe whether iteration began, ended, failed or was cancelled."""
        for pump in self._pumps:
            pump.cancel()
        for pump in self._pumps:
            with suppress(asyncio.CancelledError):
                await pump
        self._pumps = []
        for position, stream in enumerate(self._streams):
            n = self._submissions[position].params.n
            if not self._unfinished.isdisjoint(range(position * n, position * n + n)):
                # A stream whose iteration never began has no `finally` to run, so closing it is not enough.
                await self._engine.abort(self._submissions[position].request_id)
            if hasattr(stream, "aclose"):
                await stream.aclose()
        self._streams = []


@dataclass(slots=True)
class Choice:
    """All that one choice said, for a reply in one piece."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None
    cached_tokens: int = 0

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.prompt_logprobs += delta.prompt_logprobs or ()
        self.cached_tokens = max(self.cached_tokens, delta.num_cached_tokens)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason


async def collect(generation: Generation, count: int) -> list[Choice]:
    """The `count` choices of a generation, complete and in order."""
    choices = [Choice() for _ in range(count)]
    async for batch in generation:
        for index, delta in batch:
            choices[index].add(delta)
    return choices
