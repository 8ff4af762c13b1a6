"""Keeps what the last steps did. Owned by the engine; readers see finished steps only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

KEPT_STEPS = 50_000


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: seconds on CLOCK_MONOTONIC, and (request id, first position, number of tokens) for each request."""

    step: int
    start: float
    duration: float
    compute: float
    sample: float
    scheduled: tuple[tuple[str, int, int], ...]


class StepLog:
    """The most recent steps. `len()` counts every step since the start, so it is the number of the next one."""

    def __init__(self, kept: int = KEPT_STEPS) -> None:
        self._records: deque[StepRecord] = deque(maxlen=kept)
        self._count = 0

    def append(self, record: StepRecord) -> None:
        self._records.append(record)
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._records)
