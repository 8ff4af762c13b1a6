"""The exported trace is one that the format's readers accept, and it holds the record's own numbers."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from sojourn.timeline.perfetto import ENGINE, REQUESTS, chrome_trace
from tests.timeline.samples import LONG, RECEIVED_MS, long_record, steps_of


def check_valid(trace: dict[str, Any]) -> None:
    """Begins have ends and nest, times are in order, ids are unique, slices nest, arrows end at slices."""
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    events = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    open_spans: dict[tuple[str, str], list[str]] = defaultdict(list)
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "b":
            stack = open_spans[event["cat"], event["id"]]
            assert stack or event["name"] == event["id"], "an id begins once, with the request itself"
            stack.append(event["name"])
        elif event["ph"] == "e":
            assert open_spans[event["cat"], event["id"]].pop() == event["name"]
        elif event["ph"] == "X":
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], round(event["ts"] + event["dur"], 3)))
        elif event["ph"] in "sf":
            arrows[event["id"]].append(event)
        else:
            assert event["ph"] == "C"
            assert all(value >= 0 for value in event["args"].values())
    assert not any(open_spans.values())
    assert set(slices) <= named
    for spans in slices.values():
        check_nested(spans)
    for tail, head in arrows.values():
        assert (tail["ph"], head["ph"], head["bp"]) == ("s", "f", "e")
        assert tail["ts"] <= head["ts"]
        for end in (tail, head):
            assert any(begin <= end["ts"] <= over for begin, over in slices[end["pid"], end["tid"]])


def check_nested(spans: list[tuple[float, float]]) -> None:
    stack: list[float] = []
    for begin, end in spans:
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1]
        stack.append(end)


def of(trace: dict[str, Any], phase: str, pid: int) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase and event["pid"] == pid]


@pytest.fixture
def trace() -> dict[str, Any]:
    record = long_record()
    return chrome_trace([record], steps_of(record))


def test_it_is_valid(trace: dict[str, Any]) -> None:
    check_valid(trace)


def test_a_request_is_a_track_with_its_stations(trace: dict[str, Any]) -> None:
    begins, ends = of(trace, "b", REQUESTS), of(trace, "e", REQUESTS)
    names = [event["name"] for event in begins]
    assert names[:4] == [LONG, "receive", "render", "tokenize"]
    assert (begins[0]["ts"], ends[-1]["ts"]) == (RECEIVED_MS * 1000, (RECEIVED_MS + 849.3) * 1000)
    prefill = [event["ts"] for event in begins + ends if event["name"] == "prefill"]
    assert prefill[1] - prefill[0] == pytest.approx(440_700, abs=0.01)


def test_steps_are_slices_with_counters_and_arrows(trace: dict[str, Any]) -> None:
    assert [e["name"] for e in of(trace, "X", ENGINE) if e["name"].startswith("step")] == [
        f"step {number}" for number in range(3, 11)
    ]
    assert [e["name"] for e in of(trace, "X", REQUESTS)][:4] == [
        "prefill 0-60", "prefill 61-121", "prefill 122-140", "decode",
    ]  # fmt: skip
    assert len(of(trace, "s", ENGINE)) == len(of(trace, "f", REQUESTS)) == 8
    assert {e["name"] for e in of(trace, "C", ENGINE)} == {"KV blocks", "requests", "tokens in step"}
    kv = next(e for e in of(trace, "C", ENGINE) if e["name"] == "KV blocks")
    assert sum(kv["args"].values()) == 16


def test_a_live_request_ends_now() -> None:
    record = long_record(state="running", finish_reason=None, e2e_ms=5000.0)
    trace = chrome_trace([record], [])
    check_valid(trace)
    assert of(trace, "e", REQUESTS)[-1]["ts"] == (RECEIVED_MS + 5000) * 1000
    assert not of(trace, "s", ENGINE)


def test_rounded_times_that_overlap_by_a_microsecond_still_nest() -> None:
    record = long_record()
    for owner, name in ((record["stations"], "duration_ms"), (record["steps"], "duration_ms")):
        for span in owner:
            span[name] += 0.001
    steps = steps_of(record)
    for step in steps:
        step["parts"]["compute"] += 0.001
    check_valid(chrome_trace([record], steps))


def test_a_step_that_recomputes_and_goes_on_is_one_slice() -> None:
    record = long_record()
    again = record["steps"][3] | {"kind": "recompute", "from": 100, "to": 140}
    record["steps"].insert(3, again)
    trace = chrome_trace([record], steps_of(long_record()))
    check_valid(trace)
    assert of(trace, "X", REQUESTS)[3]["name"] == "recompute 100-140, decode"


def test_choices_have_threads_of_their_own() -> None:
    record = long_record()
    share = {"steps": record["steps"]}
    record["choices"] = [{"index": i, "id": f"{LONG}-{i}", **share} for i in range(2)]
    trace = chrome_trace([record, long_record(request_id="other")], steps_of(record))
    check_valid(trace)
    assert len({event["tid"] for event in of(trace, "X", REQUESTS)}) == 3
    assert len(of(trace, "s", ENGINE)) == 24


def test_the_validity_test_can_fail(trace: dict[str, Any]) -> None:
    events = trace["traceEvents"]
    for broken in (
        [e for e in events if e["ph"] != "e"],
        [e for e in events if e["ph"] != "f"],
        [e | {"ts": e["ts"] + 900_000} if e["ph"] == "f" else e for e in events],
        [*events, *events],
    ):
        with pytest.raises((AssertionError, ValueError)):
            check_valid({"traceEvents": broken, "displayTimeUnit": "ms"})
