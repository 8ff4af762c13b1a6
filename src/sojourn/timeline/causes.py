"""Says what stretched the time between two tokens. Pure functions over a record; owns no state.

One cause for each gap, the first of these that holds:

    preempted        the request lost its blocks in between
    gc               the garbage collector of either process paused for more than a tenth of it
    prefill_in_step  a step in it also computed somebody's prompt; `by` says whose
    slow_client      for more than a tenth of it a write waited for the client to read
    decode           nothing unusual

The first three delay the token itself, `slow_client` its delivery.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sojourn.timeline.records import ChoiceRecord, RequestRecord

NOTABLE_SHARE = 0.1  # of a gap, that a pause or a blocked write must have taken


class Cause(enum.StrEnum):
    DECODE = "decode"
    PREFILL_IN_STEP = "prefill_in_step"
    PREEMPTED = "preempted"
    SLOW_CLIENT = "slow_client"
    GC = "gc"


@dataclass(frozen=True, slots=True)
class Gap:
    """Between token `index` and the next."""

    index: int
    duration_ns: int
    cause: Cause
    step: int  # that gave the later token
    by: tuple[str, ...] = ()  # record ids


def gaps(
    record: RequestRecord, choice: ChoiceRecord, emitted: Sequence[int], pauses: Iterable[tuple[int, int]]
) -> list[Gap]:
    """All gaps of a choice whose tokens came with the steps `emitted`. `pauses` are the garbage collector's."""
    ends, steps = choice.columns("end_ns", "step")
    blocked = list(zip(record.blocked[::2], record.blocked[1::2], strict=True))
    lost = [each.at_ns for each in choice.preemptions]
    span = (ends[emitted[0]], ends[emitted[-1]]) if emitted else (0, 0)
    near = [pause for pause in pauses if pause[0] < span[1] and pause[1] > span[0]]
    found = []
    for index in range(len(emitted) - 1):
        first, last = emitted[index], emitted[index + 1]
        start, end = ends[first], ends[last]
        by = _prefilled_by(choice, first + 1, last)
        if any(start <= at_ns < end for at_ns in lost):
            cause, by = Cause.PREEMPTED, ()
        elif near and _overlap(near, start, end) > NOTABLE_SHARE * (end - start):
            cause, by = Cause.GC, ()
        elif by:
            cause = Cause.PREFILL_IN_STEP
        elif blocked and _overlap(blocked, start, end) > NOTABLE_SHARE * (end - start):
            cause = Cause.SLOW_CLIENT
        else:
            cause = Cause.DECODE
        found.append(Gap(index, end - start, cause, steps[last], by))
    return found


def _prefilled_by(choice: ChoiceRecord, first: int, last: int) -> tuple[str, ...]:
    if first == last:
        return choice.prefilled_by.get(first, ())
    ids = (name for index in range(first, last + 1) for name in choice.prefilled_by.get(index, ()))
    return tuple(dict.fromkeys(ids))


def _overlap(intervals: Iterable[tuple[int, int]], start: int, end: int) -> int:
    """How much of [start, end] is covered. Intervals may overlap: an engine in a thread sees the front end's pauses."""
    covered, until = 0, start
    for begin, stop in sorted(intervals):
        begin, stop = max(begin, until), min(stop, end)
        if stop > begin:
            covered += stop - begin
            until = stop
    return covered
