"""Says how many prompt tokens fit into a step beside running streams. Owns what it has learnt of the steps' times.

Only the sizes of chunks depend on it, never a token: output doesn't depend on how a prompt was cut.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from statistics import median

FIRST_CHUNK = 32  # tokens, before anything is known
LEAST_CHUNK = 16  # so that a prompt advances whatever was measured
GRANULE = 8  # chunks are multiples of it: kernels work on tiles of rows
REMEMBERED = 16  # steps of each kind; the median of so few follows a change within a second and ignores an outlier


class StepPace:
    """Takes a step's time as that of its decodes alone plus so much per prompt token, and keeps it within `stretch`
    times the former: a stream's tokens never come further apart than that, however long the prompts are."""

    def __init__(self, stretch: float) -> None:
        self._stretch = stretch
        self._alone: defaultdict[int, deque[float]] = defaultdict(_few)  # seconds, by power of two of the decodes
        self._per_token: deque[float] = _few()  # seconds

    def prompt_tokens_beside(self, num_decodes: int) -> int:
        """Prompt tokens for a step that also computes `num_decodes` (at least one) running streams."""
        alone = self._seconds_alone(num_decodes)
        if alone is None or not self._per_token:
            return FIRST_CHUNK
        affordable = (self._stretch - 1) * alone / max(median(self._per_token), 1e-9)
        return max(LEAST_CHUNK, int(affordable) // GRANULE * GRANULE)

    def observe(self, num_decodes: int, prompt_tokens: int, seconds: float) -> None:
        """A step of so many decodes and prompt tokens took this long."""
        if num_decodes == 0:
            return
        if prompt_tokens == 0:
            self._alone[num_decodes.bit_length()].append(seconds)
        elif (alone := self._seconds_alone(num_decodes)) is not None:
            self._per_token.append(max(0.0, seconds - alone) / prompt_tokens)

    def _seconds_alone(self, num_decodes: int) -> float | None:
        """Of the class of batch sizes nearest to this one: an estimate for streams that never ran without prompts."""
        size = num_decodes.bit_length()
        nearest = min(self._alone, key=lambda known: abs(known - size), default=None)
        return None if nearest is None else median(self._alone[nearest])


def _few(values: Iterable[float] = ()) -> deque[float]:
    return deque(values, maxlen=REMEMBERED)
