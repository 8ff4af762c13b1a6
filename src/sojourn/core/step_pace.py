"""Says how many prompt tokens fit into a step beside running streams. Owns what it has learnt of the steps' times.

Only the sizes of chunks depend on it, never a token: output doesn't depend on how a prompt was cut.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from functools import partial
from statistics import median, quantiles

FIRST_CHUNK = 32  # tokens, before anything is known
LEAST_CHUNK = 8  # so that a prompt advances whatever was measured
DEPTH_CLASS = 256  # tokens of a prompt whose times are remembered together
REMEMBERED_ALONE = 64  # steps of streams alone, of which many may have been disturbed: they fall between two prompts
REMEMBERED_MIXED = 16  # steps with prompts: the median of so few follows a change soon and ignores an outlier


class StepPace:
    """Takes a step's time as that of its decodes alone plus so much per prompt token, more the deeper in the prompt it
    is, and keeps it within `stretch` times the former: a stream's tokens never come further apart than that, however
    long the prompts are."""

    def __init__(self, stretch: float) -> None:
        self._stretch = stretch
        # Seconds, by power of two of the number of decodes, and by class of the depth of a chunk.
        self._alone: defaultdict[int, deque[float]] = defaultdict(partial(deque, maxlen=REMEMBERED_ALONE))
        self._per_token: defaultdict[int, deque[float]] = defaultdict(partial(deque, maxlen=REMEMBERED_MIXED))

    def prompt_tokens_beside(self, num_decodes: int, depth: int) -> int:
        """Prompt tokens for a step that also computes `num_decodes` (at least one) running streams.

        `depth`: tokens of the prompt that are computed already.
        """
        alone = self._seconds_alone(num_decodes)
        if alone is None or not self._per_token:
            return FIRST_CHUNK
        return max(LEAST_CHUNK, int((self._stretch - 1) * alone / max(self._seconds_per_token(depth), 1e-9)))

    def observe(self, num_decodes: int, prompt_tokens: int, depth: int, seconds: float) -> None:
        """A step of so many decodes and prompt tokens, the latter at that depth, took this long."""
        if num_decodes == 0:
            return
        if prompt_tokens == 0:
            self._alone[num_decodes.bit_length()].append(seconds)
        elif (alone := self._seconds_alone(num_decodes)) is not None:
            self._per_token[depth // DEPTH_CLASS].append(max(0.0, seconds - alone) / prompt_tokens)

    def _seconds_per_token(self, depth: int) -> float:
        """Between the middles of two classes, in proportion: a token looks at all before it."""
        place = depth / DEPTH_CLASS - 0.5
        below = max((known for known in self._per_token if known <= place), default=None)
        above = min((known for known in self._per_token if known > place), default=None)
        ends = [known for known in (below, above) if known is not None]
        seconds = [median(self._per_token[known]) for known in ends]
        if len(ends) == 1:
            return seconds[0]
        return seconds[0] + (seconds[1] - seconds[0]) * (place - ends[0]) / (ends[1] - ends[0])

    def _seconds_alone(self, num_decodes: int) -> float | None:
        """What undisturbed steps take: the lower quartile."""
        known = _nearest(self._alone, num_decodes.bit_length())
        if known is None:
            return None
        return quantiles(known, n=4)[0] if len(known) > 1 else known[0]


def _nearest(classes: Mapping[int, deque[float]], size: int) -> deque[float] | None:
    """The class of this size, or the nearest one: an estimate for what hasn't happened yet."""
    nearest = min(classes, key=lambda known: abs(known - size), default=None)
    return None if nearest is None else classes[nearest]
