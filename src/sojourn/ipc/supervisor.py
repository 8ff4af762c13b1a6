"""Owns the engine's life as process A sees it: start, readiness, death, restart. Never looks into a request.

Everything the engine says, and its death, goes to one callback in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from sojourn.errors import StartupError
from sojourn.ipc.launcher import Launcher, RunningEngine
from sojourn.ipc.messages import Failed, Loading, Outputs, Ready, Refused, ToEngine, decode_from_engine
from sojourn.records import EngineInfo

logger = logging.getLogger(__name__)

RESTART_INTERVAL_S = 60.0  # a start begins at most this often
LAST_WORDS_S = 0.1  # after a death, how long messages already on their way may still be read
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class EngineLost:
    """Nobody will answer the requests that were in flight."""

    reason: str


Event = Loading | Ready | Outputs | Refused | EngineLost
OnEvent = Callable[[Event], None]


class Supervisor:
    """Keeps one engine running.

    `state` is "loading" until the first engine is ready, and "dead" from a death until its successor is ready.
    """

    def __init__(
        self, launcher: Launcher, *, restart: bool = True, restart_interval: float = RESTART_INTERVAL_S
    ) -> None:
        self.state: Literal["loading", "ready", "dead"] = "loading"
        self.info: EngineInfo | None = None
        self._launcher = launcher
        self._restart = restart
        self._restart_interval = restart_interval
        self._engine: RunningEngine | None = None
        self._on_event: OnEvent  # from `start` on
        self._failure: Failed | None = None
        self._first_info: asyncio.Future[EngineInfo] | None = None
        self._gave_up: asyncio.Future[str] | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The engine's process id; None when it is a thread or not there."""
        return None if self._engine is None else self._engine.pid

    async def start(self, on_event: OnEvent) -> EngineInfo:
        """Launches the first engine and waits until it is ready. Raises StartupError, with the engine's own words.

        `on_event` is called on the loop, in the midst of reading from the engine: it must not raise.
        """
        loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._first_info = loop.create_future()
        self._gave_up = loop.create_future()
        self._life = asyncio.create_task(self._live())
        return await asyncio.shield(self._first_info)

    def send(self, message: ToEngine) -> None:
        """To the engine of the moment; to nobody while there is none, since `EngineLost` then answers for it."""
        if self._engine is not None:
            self._engine.channel.send(message)

    async def gave_up(self) -> str:
        """Returns the reason when the engine has died and will not be started again."""
        assert self._gave_up is not None, "start() comes first"
        return await asyncio.shield(self._gave_up)

    async def close(self) -> None:
        """Stops the engine, by force where it doesn't listen. Idempotent."""
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life
        self.state = "dead"
        self._fail_start(StartupError("The engine was stopped before it was ready."))

    def _fail_start(self, error: StartupError) -> None:
        if self._first_info is not None and not self._first_info.done():
            self._first_info.set_exception(error)
            self._first_info.exception()  # seen: whoever called start() may have left already

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._first_info is not None
        assert self._gave_up is not None
        while True:
            started = loop.time()
            reason = await self._one_engine()
            self.state = "dead"
            if not self._first_info.done():
                code = None if self._failure is None else self._failure.code
                self._fail_start(StartupError(reason, code=code))
                return
            self._on_event(EngineLost(reason))
            if not self._restart:
                self._gave_up.set_result(reason)
                return
            pause = max(0.0, started + self._restart_interval - loop.time())
            logger.error("%s Restarting it in %.0f s.", reason, pause)
            await asyncio.sleep(pause)

    async def _one_engine(self) -> str:
        """From launch to end. Returns why it ended."""
        self._failure = None
        try:
            self._engine = await self._launcher.launch()
        except Exception as error:  # whatever it is, somebody waits to hear of it
            logger.debug("launch failed", exc_info=True)
            return f"The engine could not be started: {error}"
        engine = self._engine
        foreign: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        engine.channel.listen(partial(self._hear, foreign))
        ended = asyncio.create_task(engine.wait())
        try:
            await asyncio.wait({foreign, ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._first_info is not None and self._first_info.done():
                self.state = "dead"  # from here on nobody may add requests
            if not ended.done():
                return f"The engine sent something that is no message: {foreign.result()}"
            await asyncio.wait({foreign}, timeout=LAST_WORDS_S)
            return ended.result() if self._failure is None else self._failure.message
        finally:
            foreign.cancel()  # what it still says is read, so that it can't wait for room, and not heard
            ended.cancel()
            await asyncio.wait({ended})
            await engine.stop(STOP_TIMEOUT_S)
            self._engine = None

    def _hear(self, foreign: asyncio.Future[str], data: bytes) -> None:
        """One message of the engine. The first that is none is the last: `foreign` then says what is wrong with it."""
        if foreign.done():
            return
        try:
            message = decode_from_engine(data)
        except Exception as error:  # whatever the decoder says of it, the line is of no more use
            foreign.set_result(str(error))
            return
        if isinstance(message, Failed):
            self._failure = message
            return
        if isinstance(message, Ready):
            self._on_ready(message.info)
        self._on_event(message)

    def _on_ready(self, info: EngineInfo) -> None:
        self.info = info
        self.state = "ready"
        if self._first_info is not None and not self._first_info.done():
            self._first_info.set_result(info)
