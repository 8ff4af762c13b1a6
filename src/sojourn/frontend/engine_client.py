"""Owns the map of choices in flight and the engine's side of them: adds, aborts, dispatch, progress. Never tokenizes.

A request leaves the map only when the engine ended it, when the engine was told to drop it, or when the engine is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Literal

from sojourn.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    RequestFailed,
    SojournError,
    Unavailable,
    Unsupported,
)
from sojourn.frontend.reply import Reply
from sojourn.ipc.messages import AbortRequests, AddRequests, Loading, Outputs, Ready, Refused, ToEngine
from sojourn.ipc.supervisor import EngineLost, Event, Supervisor
from sojourn.records import EngineInfo, EngineRequest, EngineStats, FinishReason, TokenDelta
from sojourn.timeline.recorder import Recorder

logger = logging.getLogger(__name__)

REMEMBERED_ABORTS = 4096  # many more than can be aborted within one step
STUCK_AFTER_S = 60.0  # no step takes this long: each computes at most max_num_batched_tokens

EngineState = Literal["loading", "ready", "stuck", "dead"]
OnProgress = Callable[[str, float], None]


class EngineClient:
    """Used on one event loop only."""

    def __init__(
        self, supervisor: Supervisor, *, recorder: Recorder | None = None, stuck_after: float = STUCK_AFTER_S
    ) -> None:
        """Without a recorder the engine's reports are dropped."""
        self.stats = EngineStats()
        self.progress: tuple[str, float] = ("starting", 0.0)  # stage of loading, fraction done
        self.recorder = recorder
        self._supervisor = supervisor
        self._stuck_after_ns = int(stuck_after * 1e9)
        self._in_flight: dict[str, Reply] = {}  # by engine id
        self._aborted: dict[str, None] = {}  # engine ids, oldest first
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_progress_ns = time.monotonic_ns()
        self._unheard = False  # the engine was told something and has said nothing since
        self._on_progress: OnProgress | None = None

    @property
    def state(self) -> EngineState:
        state = self._supervisor.state
        waited = time.monotonic_ns() - self._last_progress_ns
        return "stuck" if state == "ready" and self._busy and waited > self._stuck_after_ns else state

    @property
    def _busy(self) -> bool:
        """Whether a healthy engine would have something to say: clients who gave up don't make a stuck one healthy."""
        return bool(self._in_flight) or self._unheard or self.stats.num_running > 0

    @property
    def info(self) -> EngineInfo:
        """Raises Unavailable until the engine has loaded for the first time."""
        if self._supervisor.info is None:
            raise Unavailable("The model is still loading.", code="loading")
        return self._supervisor.info

    @property
    def pid(self) -> int | None:
        return self._supervisor.pid

    @property
    def num_in_flight(self) -> int:
        """Choices, not requests."""
        return len(self._in_flight)

    def may_speak_of(self, engine_id: str) -> bool:
        """In flight, or aborted so recently that the engine's tokens for it may still be on their way."""
        return engine_id in self._in_flight or engine_id in self._aborted

    def replies(self) -> list[Reply]:
        """Every request in flight once, oldest first."""
        return list(dict.fromkeys(self._in_flight.values()))

    async def start(self, on_progress: OnProgress | None = None) -> EngineInfo:
        """Waits until the engine is ready. Raises StartupError."""
        self._on_progress = on_progress
        return await self._supervisor.start(self._on_event)

    async def gave_up(self) -> str:
        """Returns the reason once the engine has died for good (--no-restart)."""
        return await self._supervisor.gave_up()

    async def wait_idle(self) -> None:
        """Returns when nothing is in flight."""
        await self._idle.wait()

    async def close(self) -> None:
        """Fails what is in flight, then stops the engine. Idempotent."""
        self.fail_all(Unavailable("The server is shutting down.", code="draining"))
        await self._supervisor.close()
        if self.recorder is not None:
            self.recorder.close()

    def add(self, reply: Reply, requests: list[EngineRequest]) -> None:
        """Hands over all choices of a request in one message."""
        if not self._busy:
            self._last_progress_ns = time.monotonic_ns()
        self._send(AddRequests(requests))  # first: what can't be sent must not stay in the map
        self._in_flight.update((request.request_id, reply) for request in requests)
        self._idle.clear()

    def abort(self, reply: Reply) -> None:
        """Tells the engine to drop what is left of a request, then forgets it. Idempotent."""
        self._drop(reply.unfinished)
        self._retire(reply)
        reply.end()

    def fail(self, reply: Reply, error: SojournError) -> None:
        """Like abort, for a consumer that still waits."""
        self._drop(reply.unfinished)
        self._retire(reply)
        reply.fail(error)

    def fail_all(self, error: SojournError) -> None:
        """Ends every request in flight with `error`."""
        for reply in self.replies():
            self.fail(reply, error)

    def _send(self, message: ToEngine) -> None:
        self._supervisor.send(message)
        self._unheard = True

    def _send_abort(self, engine_ids: list[str]) -> None:
        self._send(AbortRequests(engine_ids))
        self._aborted.update(dict.fromkeys(engine_ids))
        while len(self._aborted) > REMEMBERED_ABORTS:
            del self._aborted[next(iter(self._aborted))]

    def _drop(self, engine_ids: Iterable[str]) -> None:
        ids = [engine_id for engine_id in engine_ids if engine_id in self._in_flight]
        if ids:
            self._send_abort(ids)
        for engine_id in ids:
            self._forget(engine_id)

    def _forget(self, engine_id: str) -> None:
        del self._in_flight[engine_id]
        if not self._in_flight:
            self._idle.set()

    def _retire(self, reply: Reply) -> None:
        if reply.timer is not None:
            reply.timer.cancel()
            reply.timer = None

    def _on_event(self, event: Event) -> None:
        """Raises nothing, or the messages behind this one would be lost."""
        try:
            match event:
                case Outputs():
                    self._on_outputs(event)
                case Refused():
                    self._on_refused(event)
                case EngineLost(reason):
                    self._on_lost(reason)
                case Loading(stage, fraction):
                    self._on_loading(stage, fraction)
                case Ready(info):
                    self._on_ready(info)
        except Exception:
            logger.exception("An engine message could not be handled.")
            self.fail_all(RequestFailed("The server failed while handling the engine's output."))

    def _on_outputs(self, outputs: Outputs) -> None:
        now = time.monotonic_ns()
        if outputs.stats.last_step_ns != self.stats.last_step_ns:
            self._last_progress_ns = now
        self._unheard = False
        self.stats = outputs.stats
        if self.recorder is not None:
            for arrival in outputs.arrivals:
                self.recorder.arrived(arrival)
            if outputs.report is not None:
                self.recorder.take(outputs.report)
        stopped: list[str] = []
        for delta in outputs.deltas:
            reply = self._in_flight.get(delta.request_id)
            if reply is None:  # aborted while this was on its way
                continue
            if self._on_delta(reply, delta, now):
                stopped.append(delta.request_id)
        if stopped:
            self._send_abort(stopped)

    def _on_delta(self, reply: Reply, delta: TokenDelta, received_ns: int) -> bool:
        """Returns whether the engine must stop this choice because its text has ended."""
        if delta.finish_reason is FinishReason.ERROR or delta.finish_reason is FinishReason.ABORT:
            self.fail(reply, RequestFailed(delta.error or "The engine dropped the request."))
            return False
        try:
            choice = reply.push(delta.request_id, delta, received_ns)
        except Exception:
            logger.exception("Request %s: its tokens could not be turned into text.", reply.request_id)
            self.fail(reply, RequestFailed("The reply's tokens could not be turned into text."))
            return False
        if choice.finished:
            self._forget(delta.request_id)
        if not reply.unfinished:
            self._retire(reply)
        return choice.stopped_early

    def _on_refused(self, refused: Refused) -> None:
        if self.recorder is not None:
            self.recorder.refused(refused.request_id)
        reply = self._in_flight.get(refused.request_id)
        if reply is not None:
            self.fail(reply, _refusal(refused))

    def _on_lost(self, reason: str) -> None:
        self.stats = EngineStats()
        if self.recorder is not None:
            self.recorder.engine_lost()
        self.fail_all(RequestFailed(f"The engine was lost. {reason}", code="engine_dead"))
        self._unheard = False

    def _on_loading(self, stage: str, fraction: float) -> None:
        self.progress = (stage, fraction)
        if self._on_progress is not None:
            self._on_progress(stage, fraction)

    def _on_ready(self, info: EngineInfo) -> None:
        self.progress = ("ready", 1.0)
        if self.recorder is not None:
            self.recorder.engine_ready(info)


def _refusal(refused: Refused) -> SojournError:
    """The error that the engine raised, as the same kind again."""
    kinds = {kind.code: kind for kind in (ContextLengthExceeded, Unsupported, InvalidRequest)}
    kind = kinds.get(refused.code)
    if kind is None:
        return RequestFailed(refused.message, code=refused.code)
    return kind(refused.message, param=refused.param, code=refused.code)
