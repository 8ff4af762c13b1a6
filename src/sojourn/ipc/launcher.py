"""Owns one running engine, in a thread or a process, from start to end. Never decides whether to start another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sojourn.config import EngineConfig
from sojourn.ipc.bootstrap import Bootstrap, encode_bootstrap
from sojourn.ipc.channel import ClientEnd, EngineEnd
from sojourn.ipc.messages import Stop
from sojourn.ipc.socket_channel import socket_pair
from sojourn.ipc.socket_client import SocketClientEnd
from sojourn.ipc.thread_channel import in_process_channel

ENGINE_COMMAND = (sys.executable, "-m", "sojourn.core.proc")
LAST_LINES = 20


class RunningEngine(Protocol):
    channel: ClientEnd
    pid: int | None  # None when it is a thread

    async def wait(self) -> str:
        """Returns when the engine has ended: one line that says how."""

    async def stop(self, grace: float) -> None:
        """Asks it to stop, kills it after `grace` seconds, and frees the channel. Idempotent."""


class Launcher(Protocol):
    async def launch(self) -> RunningEngine:
        """Starts an engine; does not wait until it has loaded. Raises OSError."""


class ThreadLauncher:
    """Runs `serve(end)` in a thread of this process. The composition root binds the configuration to it."""

    def __init__(self, serve: Callable[[EngineEnd], None]) -> None:
        self._serve = serve

    async def launch(self) -> RunningEngine:
        return _ThreadEngine(self._serve)


class ProcessLauncher:
    """Runs the engine as a child process, with `env` added to its environment."""

    def __init__(
        self, config: EngineConfig, *, env: Mapping[str, str] | None = None, command: Sequence[str] = ENGINE_COMMAND
    ) -> None:
        self._config = config
        self._env = env
        self._command = command

    async def launch(self) -> RunningEngine:
        ours, theirs = socket_pair()
        with theirs:  # closed here once the child has it, or the line would not end with the child
            channel = SocketClientEnd(ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,  # a print in the engine must not mix with A's own output
                    env=None if self._env is None else _environment(self._env),
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                channel.close()
                raise
            engine = _ProcessEngine(process, channel)
            engine.send_bootstrap(Bootstrap(self._config, line=theirs.fileno()))
        return engine


class _ThreadEngine:
    def __init__(self, serve: Callable[[EngineEnd], None]) -> None:
        self.pid: int | None = None
        self.channel, end = in_process_channel()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        # A daemon: a step that never returns must not keep the whole server from exiting.
        self._thread = threading.Thread(target=self._run, args=(serve, end), name="sojourn-engine", daemon=True)
        self._thread.start()

    async def wait(self) -> str:
        return await asyncio.shield(self._ended)

    async def stop(self, grace: float) -> None:
        self.channel.send(Stop())
        await asyncio.wait({self._ended}, timeout=grace)
        self.channel.close()

    def _run(self, serve: Callable[[EngineEnd], None], end: EngineEnd) -> None:
        try:
            serve(end)
            reason = "The engine thread stopped."
        except BaseException as error:  # the thread's end is the report: the supervisor turns it into errors
            reason = f"The engine thread ended with {type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._set_ended, reason)

    def _set_ended(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)


class _ProcessEngine:
    def __init__(self, process: asyncio.subprocess.Process, channel: ClientEnd) -> None:
        self.pid: int | None = process.pid
        self.channel = channel
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._output = asyncio.create_task(self._pass_on_output())

    def send_bootstrap(self, bootstrap: Bootstrap) -> None:
        assert self._process.stdin is not None  # PIPE was asked for
        self._process.stdin.write(encode_bootstrap(bootstrap))  # and stays open: see bootstrap.py

    async def wait(self) -> str:
        status = await self._process.wait()
        await asyncio.wait({self._output}, timeout=0.2)  # a grandchild may hold the pipe open
        how = f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"
        last = self._last_lines[-1] if self._last_lines else ""
        return f"The engine process {how}." + (f" Its last output: {last}" if last and status else "")

    async def stop(self, grace: float) -> None:
        self.channel.send(Stop())
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            self.channel.close()
            await self._close_pipes()

    async def _close_pipes(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        await asyncio.wait({self._output}, timeout=0.2)
        self._output.cancel()

    async def _pass_on_output(self) -> None:
        """What the engine prints goes to A's stderr as it comes; its last lines explain a death."""
        stream = self._process.stdout
        assert stream is not None  # PIPE was asked for
        while chunk := await stream.read(65536):
            sys.stderr.write(chunk.decode("utf-8", "replace"))
            sys.stderr.flush()
            self._last_lines.extend(line for line in chunk.decode("utf-8", "replace").splitlines() if line.strip())


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **extra}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
