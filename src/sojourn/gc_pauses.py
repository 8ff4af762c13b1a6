"""Times the garbage collector's pauses in this process, so that a gap between tokens can be blamed on one."""

from __future__ import annotations

import gc
import time
from collections import deque
from typing import Any

SHORTEST_NS = 200_000  # shorter ones explain no gap that anybody could notice
KEPT = 1000


class GCPauses:
    """Listens from `start` to `stop`. The interpreter calls it in whichever thread happened to allocate."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._pauses: deque[tuple[int, int]] = deque(maxlen=KEPT)

    def start(self) -> None:
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def take(self) -> list[tuple[int, int]]:
        """(start, end) of the pauses since the last call, in nanoseconds of the monotonic clock."""
        taken = []
        while self._pauses:
            taken.append(self._pauses.popleft())
        return taken

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._began_ns = now
        elif now - self._began_ns >= SHORTEST_NS:
            self._pauses.append((self._began_ns, now))
