"""Keeps what the last steps did. Owned by the engine; readers see finished steps only."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

KEPT_STEPS = 50_000


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: seconds on CLOCK_MONOTONIC, and who computed what, in arrays since tens of thousands are kept."""

    step: int
    start: float
    duration: float
    compute: float
    sample: float
    request_ids: tuple[str, ...]
    positions: array[int]  # the first one that each request computed
    counts: array[int]  # how many

    @property
    def scheduled(self) -> tuple[tuple[str, int, int], ...]:
        """(request id, first position, number of tokens) for each request."""
        return tuple(zip(self.request_ids, self.positions, self.counts, strict=True))


class StepLog:
    """The most recent steps. `len()` counts every step since the start, so it is the number of the next one."""

    def __init__(self, kept: int = KEPT_STEPS) -> None:
        self._records: deque[StepRecord] = deque(maxlen=kept)
        self._count = 0

    def append(self, record: StepRecord) -> None:
        self._records.append(record)
        self._count += 1

    def skip(self) -> None:
        """Count a step that is recorded elsewhere."""
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._records)
