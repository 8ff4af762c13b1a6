"""Records and steps in the Chrome trace format, which ui.perfetto.dev and chrome://tracing open. Pure functions over
the JSON of GET /v1/requests/{id} and GET /v1/steps; holds no state.

    process "requests"   an async track for each request: its life, and its stations inside it
                         a thread for each choice: its share of each step, where the arrows end
    process "engine"     one slice for each step, its parts inside it, an arrow to each choice it computed
                         counters: KV blocks, requests, tokens

Arrows can only end at slices of threads, which is why a request has both kinds of track. All times are microseconds
since the server's start.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]
Event = dict[str, Any]

REQUESTS, ENGINE = 1, 2  # process ids
_STEPS = {"pid": ENGINE, "tid": 1}  # the engine's only thread
STEP_PARTS = ("schedule", "prepare", "compute", "sample", "update")  # in the order they happen


class _Share(NamedTuple):
    """A choice's share of one step, as a slice of the choice's thread."""

    step: int
    tid: int
    ts: float


def chrome_trace(records: Sequence[Record], steps: Sequence[Record]) -> dict[str, Any]:
    """Steps in order of time. A live request ends where its record does, so that every begin has its end."""
    events = [_name("process_name", REQUESTS, 0, "requests"), _name("process_name", ENGINE, 0, "engine")]
    events.append(_name("thread_name", ENGINE, 1, "steps"))
    timed: list[Event] = []
    shares: list[_Share] = []
    tid = 0
    for record in records:
        timed += _life(record, tid + 1)
        choices = record.get("choices") or [record]
        for choice in choices:
            tid += 1
            name = record["request_id"] + (f" choice {choice['index']}" if len(choices) > 1 else "")
            events.append(_name("thread_name", REQUESTS, tid, name))
            slices = list(_shares(record, choice, tid))
            timed += slices
            shares += [_Share(event["args"]["step"], tid, event["ts"]) for event in slices]
    timed += _steps(steps)
    timed += _arrows(shares, steps)
    # Events of the same instant keep their order, outer before inner: the sort is stable.
    events += sorted(timed, key=lambda event: event["ts"])
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _tiled(spans: Sequence[tuple[float, float]], end: float = math.inf) -> list[tuple[float, float]]:
    """(start, duration) in ms, in order, to (begin, end) in microseconds, none beyond `end`.

    Records are rounded, so one span may end a microsecond behind the next one's start. Here it ends with it: readers
    of the format take what overlaps as nested.
    """
    limit = _us(end)
    begins = [min(_us(start), limit) for start, _ in spans]
    ends = [_us(start + duration) for start, duration in spans]
    return [
        (begin, max(begin, min(over, following)))
        for begin, over, following in zip(begins, ends, [*begins[1:], limit], strict=False)  # no spans: one longer
    ]


def _us(ms: float) -> float:
    """To the nanosecond: equal instants stay equal after the arithmetic of floats."""
    return ms if math.isinf(ms) else round(ms * 1000, 3)


# -- requests ------------------------------------------------------------------------------------------------------


def _life(record: Record, tid: int) -> Iterator[Event]:
    origin, stations = record["received_ms"], record["stations"]
    end = origin + record["e2e_ms"]
    common = {"cat": "request", "id": record["request_id"], "pid": REQUESTS, "tid": tid}
    yield {"ph": "b", **common, "name": record["request_id"], "ts": _us(origin), "args": _summary(record)}
    spans = _tiled([(origin + station["start_ms"], station["duration_ms"]) for station in stations], end)
    for station, (begin, over) in zip(stations, spans, strict=True):
        inner = {**common, "name": station["name"]}
        yield {"ph": "b", **inner, "ts": begin, "args": {"process": station["process"]}}
        yield {"ph": "e", **inner, "ts": over}
    yield {"ph": "e", **common, "name": record["request_id"], "ts": _us(end)}


def _summary(record: Record) -> Event:
    shown = ("state", "finish_reason", "model", "endpoint", "prompt_tokens", "cached_tokens", "completion_tokens")
    ttft = record.get("ttft")
    return {name: record[name] for name in shown} | {"ttft_ms": ttft["total_ms"] if ttft else None}


def _shares(record: Record, choice: Record, tid: int) -> Iterator[Event]:
    # A step has two entries where it recomputed what had been lost and went on beyond that.
    steps = [list(entries) for _, entries in itertools.groupby(choice["steps"], key=lambda step: step["step"])]
    spans = _tiled([(record["received_ms"] + step["start_ms"], step["duration_ms"]) for step, *_ in steps])
    for entries, (begin, end) in zip(steps, spans, strict=True):
        step = entries[0]
        yield {
            "ph": "X", "cat": "step", "name": ", ".join(map(_work, entries)), "pid": REQUESTS, "tid": tid,
            "ts": begin, "dur": round(end - begin, 3),
            "args": {"step": step["step"], "batch_tokens": step["batch_tokens"]},
        }  # fmt: skip


def _work(step: Record) -> str:
    return "decode" if step["kind"] == "decode" else f"{step['kind']} {step['from']}-{step['to']}"


# -- steps ---------------------------------------------------------------------------------------------------------


def _steps(steps: Sequence[Record]) -> Iterator[Event]:
    spans = _tiled([(step["start_ms"], step["duration_ms"]) for step in steps])
    for step, (begin, end) in zip(steps, spans, strict=True):
        args = {name: step[name] for name in ("tokens", "budget", "preempted", "admitted", "evicted_blocks")}
        yield _slice(f"step {step['step']}", begin, end) | {"args": args}
        yield from _parts(step, end / 1000)
        for name, values in (
            ("KV blocks", {state: step["kv"][state] for state in ("live", "cached", "free")}),
            ("requests", {"running": step["running"], "waiting": step["queue"]}),
            ("tokens in step", {"tokens": step["tokens"]}),
        ):
            yield {"ph": "C", "name": name, "pid": ENGINE, "ts": begin, "args": values}


def _parts(step: Record, end_ms: float) -> Iterator[Event]:
    at, spans = step["start_ms"], []
    for part in STEP_PARTS:
        spans.append((at, step["parts"][part]))
        at += step["parts"][part]
    for part, (begin, end) in zip(STEP_PARTS, _tiled(spans, end_ms), strict=True):
        yield _slice(part, begin, end)


def _slice(name: str, begin: float, end: float) -> Event:
    return {"ph": "X", "cat": "step", "name": name, **_STEPS, "ts": begin, "dur": round(end - begin, 3)}


def _arrows(shares: Sequence[_Share], steps: Iterable[Record]) -> Iterator[Event]:
    """From the engine's slice of a step to the shares of it, for steps whose both ends are in the trace."""
    starts = {step["step"]: _us(step["start_ms"]) for step in steps}
    known = [share for share in shares if share.step in starts]
    for number, share in enumerate(known, 1):
        common = {"cat": "step", "name": "computes", "id": number}
        tail = starts[share.step]
        yield {"ph": "s", **common, **_STEPS, "ts": tail}
        # Both starts are rounded; an arrow never goes back in time.
        yield {"ph": "f", "bp": "e", **common, "pid": REQUESTS, "tid": share.tid, "ts": max(share.ts, tail)}
