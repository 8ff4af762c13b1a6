"""Runs the application on sockets that are bound already, from the first connection to the last. Owner of start,
drain and stop.

First signal: not ready at once, new requests are refused, those in flight finish until the timeout and then end with
an error. Second signal: they end now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sojourn.config import ServerConfig
from sojourn.errors import Unavailable
from sojourn.server.admission import Gate
from sojourn.server.app import create_app
from sojourn.server.error_map import Failure
from sojourn.server.seam import Engine
from sojourn.timeline.finished import FinishedRecords, View
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.system import SystemFacts

logger = logging.getLogger("sojourn.server")

HEADER_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 65  # longer than the usual load balancer's 60, so that it is not us who close under a request
LAST_WORDS_SECONDS = 5.0  # for the error events and the idle connections, once the work is over
STATE_POLL_SECONDS = 0.25
PULL_SECONDS = 0.25  # long before the recorder's ring of finished requests is full


async def serve(
    engine: Engine | Awaitable[Engine],
    sockets: Sequence[socket.socket],
    config: ServerConfig,
    *,
    scheduling_policy: str = "fcfs",
    recorder: Recorder | None = None,
    system: SystemFacts | None = None,
    views: Sequence[View] = (),
    on_ready: Callable[[Engine], None] | None = None,
) -> int:
    """Serve until a signal; returns the exit code: 0 after a drain, 1 if the engine died and config.no_restart is
    set.

    An engine that is still an awaitable is loaded while the sockets answer 503 `loading`; what it raises is raised
    here, after the sockets are closed. The engine is closed before this returns. `on_ready` is called once it takes
    requests, each of `views` once for every record that is complete.
    """
    app = create_app(None, config, scheduling_policy=scheduling_policy, recorder=recorder, system=system, views=views)
    server = _Server(uvicorn_config(app))
    stop = _Stop(app.state.context.gate, config.shutdown_timeout)
    http = asyncio.create_task(server.serve(sockets=list(sockets)))
    pulling = asyncio.create_task(_pull(app.state.context.finished))
    loaded: Engine | None = None
    exit_code = 0
    try:
        with stop.on_signals():
            loaded = await stop.unless_stopped(_load(engine))
            if loaded is not None:
                app.state.context.gate.attach(loaded)
                exit_code = await _run(loaded, config, stop, http, on_ready)
    finally:
        server.should_exit = True
        await http
        if loaded is not None:
            await loaded.close()
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
    return exit_code


async def _pull(finished: FinishedRecords | None) -> None:
    """Feeds the views until cancelled, and once more then."""
    while finished is not None:
        try:
            await asyncio.sleep(PULL_SECONDS)
        finally:
            finished.pull()


async def _load(engine: Engine | Awaitable[Engine]) -> Engine:
    return await engine if isinstance(engine, Awaitable) else engine


async def _run(
    engine: Engine,
    config: ServerConfig,
    stop: _Stop,
    http: asyncio.Task[None],
    on_ready: Callable[[Engine], None] | None,
) -> int:
    """Watches for the end. The engine's state is polled: it is a value in memory, and nothing here is in a hurry."""
    announced = False
    while not stop.requested.is_set():
        if http.done():
            return 1
        if engine.state == "dead" and config.no_restart:
            logger.error("the engine is not running and --no-restart is set: stopping")
            return 1
        if engine.state == "ready" and not announced:
            announced = True
            if on_ready is not None:
                on_ready(engine)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.requested.wait(), STATE_POLL_SECONDS)
    await stop.drain(engine)
    return 0


class _Stop:
    """The signals, and what they do to the requests in flight."""

    def __init__(self, gate: Gate, timeout: float) -> None:
        self.requested = asyncio.Event()
        self._now = asyncio.Event()
        self._gate = gate
        self._timeout = timeout

    @contextlib.contextmanager
    def on_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self.requested.is_set():
            logger.warning("stopping now")
            self._now.set()
            return
        self._gate.begin_drain()
        logger.info("stopping: %d requests in flight have %g s to finish", self._gate.in_flight, self._timeout)
        self.requested.set()

    async def unless_stopped(self, loading: Awaitable[Engine]) -> Engine | None:
        """The loaded engine, or None if a signal came first."""
        load = asyncio.ensure_future(loading)
        stopped = asyncio.create_task(self.requested.wait())
        try:
            await asyncio.wait({load, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if load.done():
                return load.result()
            load.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await load
            return None
        finally:
            stopped.cancel()

    async def drain(self, engine: Engine) -> None:
        """Returns when nothing is in flight any more.

        The gate refuses what is new; the engine goes on taking requests until then, since those that were let in
        before the signal may still be on their way to it.
        """
        idle = asyncio.create_task(self._gate.wait_idle())
        now = asyncio.create_task(self._now.wait())
        await asyncio.wait({idle, now}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
        self._gate.cut_all(Unavailable("The server is shutting down.", code="draining", retry_after=10))
        await asyncio.wait({idle}, timeout=LAST_WORDS_SECONDS)
        for task in (idle, now):
            task.cancel()
        await asyncio.gather(idle, now, return_exceptions=True)
        await engine.drain(0.0)


class _Server(uvicorn.Server):
    """Signals are `_Stop`'s business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class _Http(HttpToolsProtocol):
    """Closes a connection whose request headers don't arrive in time; uvicorn bounds only the pauses in between."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def on_message_begin(self) -> None:
        self._await_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def _await_headers(self) -> None:
        self._stop_timer()
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is not HTTP, in our shape."""
        failure = Failure(400, "The request is not valid HTTP.", None, "bad_request")
        body = failure.body()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def uvicorn_config(app: FastAPI) -> uvicorn.Config:
    """How the application is run, whoever runs it."""
    return uvicorn.Config(
        app,
        http=_Http,
        ws="none",
        lifespan="off",
        log_config=None,  # logging belongs to the command line
        access_log=False,  # request_ids logs each request with its ids
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(LAST_WORDS_SECONDS),
    )
