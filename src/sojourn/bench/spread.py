"""Percentiles of a handful of measurements. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a set of measurements is distributed; all NaN when there was none."""

    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float], scale: float = 1.0) -> Spread:
        """`scale` multiplies every value, e.g. 1e3 for seconds that are shown in milliseconds."""
        ordered = sorted(values)
        p50, p90, p99, largest = (scale * _at(ordered, share) for share in (0.5, 0.9, 0.99, 1.0))
        return cls(p50=p50, p90=p90, p99=p99, max=largest)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of all lie below, interpolated linearly between neighbours; NaN without values."""
    return _at(sorted(values), percent / 100)


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def _at(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
