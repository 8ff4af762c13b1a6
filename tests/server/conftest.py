"""A real uvicorn on a free loopback port, with a fake engine behind it, in a thread of the test process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import httpx
import openai
import pytest
import uvicorn
from fastapi import FastAPI

from sojourn.config import ServerConfig
from sojourn.server.app import create_app
from sojourn.server.seam import Engine
from sojourn.server.serve import uvicorn_config
from sojourn.timeline.finished import View
from sojourn.timeline.recorder import Recorder
from tests.server.fake_engine import FakeEngine

EngineContext = contextlib.AbstractAsyncContextManager[Engine]


class Live:
    """A server that answers at `url`."""

    def __init__(self, app: FastAPI, engine: FakeEngine, around: EngineContext | None = None) -> None:
        """`around` is entered in the server's loop; what it gives becomes the engine."""
        self.app = app
        self.engine = engine
        self._around = around
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # so that a slow reader is felt soon
        self.address: tuple[str, int] = self.socket.getsockname()[:2]
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self.loop: asyncio.AbstractEventLoop | None = None
        self._server = uvicorn.Server(uvicorn_config(app))
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            async with contextlib.AsyncExitStack() as stack:
                if self._around is not None:
                    self.app.state.context.gate.attach(await stack.enter_async_context(self._around))
                await self._server.serve(sockets=[self.socket])

        asyncio.run(main())

    def start(self) -> None:
        self._thread.start()
        wait_for(lambda: self._server.started)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def call(self, function: Callable[[], None]) -> None:
        """Run in the server's event loop."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(function)


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)


@contextlib.contextmanager
def running(
    engine: FakeEngine | None,
    config: ServerConfig | None = None,
    *,
    scheduling_policy: str = "fcfs",
    around: EngineContext | None = None,
    recorder: Recorder | None = None,
    views: Sequence[View] = (),
) -> Iterator[Live]:
    app = create_app(
        engine,
        config or ServerConfig(),
        scheduling_policy=scheduling_policy,
        recorder=recorder or Recorder(),
        views=views,
    )
    live = Live(app, engine or FakeEngine(), around)
    live.start()
    try:
        yield live
    finally:
        live.stop()


@pytest.fixture(scope="session")
def _shared() -> Iterator[Live]:
    with running(FakeEngine()) as live:
        yield live


@pytest.fixture
def live(_shared: Live) -> Live:
    """The shared server; its engine as new."""
    wait_for(lambda: _shared.app.state.context.gate.in_flight == 0)
    _shared.engine.reset()
    return _shared


@pytest.fixture
def engine(live: Live) -> FakeEngine:
    return live.engine


@pytest.fixture
def http(live: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=10.0, trust_env=False) as client:
        yield client


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0, timeout=10.0) as official:
        yield official
