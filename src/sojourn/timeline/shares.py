"""Splits whole units (terminal cells, tenths of a percent) over durations so that they add up. Holds no state."""

from __future__ import annotations

from collections.abc import Mapping


def shares(durations: Mapping[str, float], units: int) -> dict[str, int]:
    """`units` divided in proportion, by largest remainder: the parts sum to `units`, which plain rounding misses.

    Negative durations count as nothing; if nothing took any time, nobody gets a unit.
    """
    positive = {name: max(duration, 0.0) for name, duration in durations.items()}
    total = sum(positive.values())
    if total == 0.0:
        return dict.fromkeys(durations, 0)
    exact = {name: duration * units / total for name, duration in positive.items()}
    whole = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: whole[name] - exact[name])
    for name in by_remainder[: units - sum(whole.values())]:
        whole[name] += 1
    return whole
