"""Owns the threads in which templates are rendered and texts tokenized. Never runs on the event loop, never unbounded.

The bound is real: work that exceeds it is interrupted in its thread, so a hostile prompt can't hold a thread for ever.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from sojourn.errors import InvalidRequest, Unavailable

T = TypeVar("T")

NUM_THREADS = 2
TIME_BOUND_S = 10.0


class TextPool:
    def __init__(self, *, time_bound: float = TIME_BOUND_S) -> None:
        self._time_bound = time_bound
        self._executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="sojourn-text")
        self._jobs: set[_Job[Any]] = set()

    async def run(self, work: Callable[[], T], *, what: str, param: str) -> T:
        """Runs `work` in a thread. A caller that is cancelled takes its work with it.

        Raises InvalidRequest naming `param` when it takes longer than the bound, Unavailable when no thread got free
        in that time, and whatever `work` raises.
        """
        job = _Job(work)
        self._jobs.add(job)
        future = asyncio.get_running_loop().run_in_executor(self._executor, job)
        try:
            if await self._wait(future, job):
                return future.result()
        except _Interrupted:
            raise Unavailable("The server is shutting down.", code="draining") from None
        finally:
            self._jobs.discard(job)
            if not future.done():
                future.add_done_callback(_look_at_outcome)
                if not job.started:
                    future.cancel()
                job.interrupt()
        if not job.started:
            raise Unavailable(f"The server is too busy to {what} now.", code="overloaded", retry_after=1)
        raise InvalidRequest(f"It took longer than {self._time_bound:g} s to {what}.", param=param)

    def close(self) -> None:
        """Interrupts what still runs, since the interpreter's exit waits for these threads."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for job in self._jobs:
            job.interrupt()

    async def _wait(self, future: asyncio.Future[T], job: _Job[T]) -> bool:
        """Whether it is done in time. Time spent queueing for a thread is bounded too, but counted apart."""
        done, _ = await asyncio.wait({future}, timeout=self._time_bound)
        while not done and job.started and (left := job.seconds_left(self._time_bound)) > 0:
            done, _ = await asyncio.wait({future}, timeout=left)
        return bool(done)


class _Interrupted(BaseException):
    """Raised in a worker thread from outside; not an Exception, so that nothing in the work swallows it."""


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()  # interrupting and finishing exclude each other
        self._thread_id: int | None = None  # while it runs
        self._started_at: float | None = None

    @property
    def started(self) -> bool:
        return self._started_at is not None

    def seconds_left(self, bound: float) -> float:
        return bound if self._started_at is None else self._started_at + bound - time.monotonic()

    def __call__(self) -> T:
        self._started_at = time.monotonic()
        self._thread_id = threading.get_ident()
        try:
            return self._work()
        finally:
            with self._lock:
                self._thread_id = None

    def interrupt(self) -> None:
        """Takes effect at the worker's next Python instruction; native code runs to its own end first."""
        with self._lock:
            if self._thread_id is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread_id), ctypes.py_object(_Interrupted)
                )


def _look_at_outcome(future: asyncio.Future[T]) -> None:
    """Nobody waits for an interrupted job: look at its outcome so that asyncio doesn't report it as lost."""
    if not future.cancelled():
        future.exception()
