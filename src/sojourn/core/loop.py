"""Owns the engine's thread: takes messages in order, steps while there is work, answers. Never schedules or computes.

A second thread only receives: it stamps each message at once, so that waiting for a step is not mistaken for sending.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sojourn.env import keep_records
from sojourn.errors import ClientError, SojournError, StartupError
from sojourn.ipc.channel import EngineEnd
from sojourn.ipc.messages import (
    AbortRequests,
    AddRequests,
    Failed,
    Loading,
    Outputs,
    Ready,
    Refused,
    Stop,
    ToEngine,
)
from sojourn.records import EngineInfo, EngineRequest, EngineStats, TokenDelta
from sojourn.records.life import Arrival, EngineReport

logger = logging.getLogger(__name__)

IDLE_STEP_PAUSE_S = 0.005  # after a step that could compute nothing, so that waiting work doesn't burn a core


class Queued(Protocol):
    """A request that the engine took."""

    @property
    def sequence(self) -> int: ...


class Engine(Protocol):
    """What the loop needs of EngineCore."""

    info: EngineInfo

    def start_reporting(self) -> None: ...
    def stop_reporting(self) -> None: ...
    def report(self) -> EngineReport | None: ...
    def add_request(self, request: EngineRequest) -> Queued: ...
    def abort(self, request_ids: Iterable[str]) -> None: ...
    def has_unfinished(self) -> bool: ...
    def step(self) -> list[TokenDelta]: ...
    def stats(self) -> EngineStats: ...
    def audit(self) -> None: ...


OnProgress = Callable[[str, float], None]
Build = Callable[[OnProgress], Engine]


@dataclass(frozen=True, slots=True)
class Received:
    message: ToEngine
    at_ns: int  # time.monotonic_ns()


class Inbox:
    """Messages in the order in which they came. The thread ends when the channel is closed."""

    def __init__(self, end: EngineEnd) -> None:
        self._end = end
        self._queue: queue.SimpleQueue[Received | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._receive, name="sojourn-receive", daemon=True).start()

    def take(self, *, timeout: float | None) -> list[Received]:
        """All that is there. Waits up to `timeout` seconds for the first message (None: for ever).

        Raises msgspec.DecodeError when A sent something that is no message.
        """
        items: list[Received] = []
        try:
            items.append(_checked(self._queue.get(timeout=timeout) if timeout != 0 else self._queue.get_nowait()))
            while True:
                items.append(_checked(self._queue.get_nowait()))
        except queue.Empty:
            return items

    def _receive(self) -> None:
        while True:
            try:
                message = self._end.receive()
            except msgspec.DecodeError as error:
                self._queue.put(error)
                continue
            except SojournError as error:  # a record that checks itself refused its values
                self._queue.put(error)
                continue
            if message is None:
                return
            self._queue.put(Received(message, time.monotonic_ns()))


def _checked(item: Received | Exception) -> Received:
    if isinstance(item, Exception):
        raise item
    return item


def serve(build: Build, end: EngineEnd) -> None:
    """Loads an engine and runs it until `Stop`. Whatever ends it earlier is told to A as `Failed`, then raised."""
    inbox = Inbox(end)
    try:
        engine = build(lambda stage, fraction: end.send(Loading(stage, fraction)))
        if keep_records():
            engine.start_reporting()
        end.send(Ready(engine.info))
        try:
            BusyLoop(engine, inbox, end).run()
        finally:
            engine.stop_reporting()
    except StartupError as error:
        end.send(Failed(error.code, error.message))
        raise
    except Exception as error:
        logger.exception("The engine failed.")
        end.send(Failed("engine_failed", f"The engine failed: {type(error).__name__}: {error}"))
        raise
    finally:
        end.close()


class BusyLoop:
    """An unexpected exception in a step leaves the engine's state unknown, so it is not survived: it ends `run`."""

    def __init__(self, engine: Engine, inbox: Inbox, end: EngineEnd) -> None:
        self._engine = engine
        self._inbox = inbox
        self._end = end
        self._arrivals: list[Arrival] = []
        self._ready_ns = time.monotonic_ns()
        self._last_step_ns = 0

    def run(self) -> None:
        """Returns on `Stop`."""
        timeout: float | None = None
        while True:
            received = self._inbox.take(timeout=timeout)
            if not self._handle(received):
                return
            if not self._engine.has_unfinished():
                if received:  # aborts and refusals change the gauges without a step
                    self._publish([])
                self._engine.audit()
                timeout = None
                continue
            timeout = 0.0 if self._step() else IDLE_STEP_PAUSE_S

    def _handle(self, received: list[Received]) -> bool:
        taken_ns = time.monotonic_ns()
        for item in received:
            match item.message:
                case AddRequests(requests):
                    for request in requests:
                        self._add(request, item.at_ns, taken_ns)
                case AbortRequests(request_ids):
                    self._engine.abort(request_ids)
                case Stop():
                    return False
        return True

    def _add(self, request: EngineRequest, received_ns: int, taken_ns: int) -> None:
        try:
            handle = self._engine.add_request(request).sequence
            loading = received_ns < self._ready_ns
            self._arrivals.append(Arrival(request.request_id, received_ns, taken_ns, handle, loading))
        except SojournError as error:
            param = error.param if isinstance(error, ClientError) else None
            refused = Refused(request_id=request.request_id, code=error.code, message=error.message, param=param)
            self._end.send(refused)

    def _step(self) -> bool:
        """False when nothing could be computed."""
        deltas = self._engine.step()
        stats = self._publish(deltas)
        progress = stats.last_step_ns != self._last_step_ns
        self._last_step_ns = stats.last_step_ns
        return progress

    def _publish(self, deltas: list[TokenDelta]) -> EngineStats:
        stats = self._engine.stats()
        arrivals, self._arrivals = self._arrivals, []
        report = self._engine.report()
        sent_ns = time.monotonic_ns()
        self._end.send(Outputs(deltas=deltas, stats=stats, arrivals=arrivals, report=report, sent_ns=sent_ns))
        return stats
