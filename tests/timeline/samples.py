"""Records and steps in the shape of the HTTP API: three short requests decode while a long one of 141 tokens is
computed in three chunks under a budget of 64."""

from __future__ import annotations

from typing import Any

from sojourn.records.life import Station
from sojourn.timeline.measures import Measures

LONG = "chatcmpl-long"
SHORTS = tuple(f"chatcmpl-short-{i}" for i in range(3))
RECEIVED_MS = 1000.0
STARTS = (1.6, 147.6, 295.6, 454.0, 540.0, 620.0, 699.0, 779.0)  # of the long one's steps, from its arrival
DURATIONS = (146.0, 148.0, 146.7, 85.9, 79.9, 78.9, 79.9, 70.0)
CHUNKS = ((0, 60), (61, 121), (122, 140))


def long_record(**changes: Any) -> dict[str, Any]:
    parts = {
        "receive": 0.4, "render": 0.3, "tokenize": 0.5, "send": 0.2, "queue": 0.1, "prefix": 0.1, "prefill": 440.7,
        "stall": 0.0, "preempted": 0.0, "sample": 0.9, "return": 0.3, "detokenize": 0.1, "stream": 0.2,
    }  # fmt: skip
    steps = [
        {
            "step": 3 + i, "start_ms": start, "duration_ms": duration, "kind": "prefill" if i < 3 else "decode",
            "from": CHUNKS[i][0] if i < 3 else 138 + i, "to": CHUNKS[i][1] if i < 3 else 138 + i,
            "tokens": CHUNKS[i][1] - CHUNKS[i][0] + 1 if i < 3 else 1, "batch_tokens": 64 if i < 2 else 4,
            "batch_requests": 4,
        }
        for i, (start, duration) in enumerate(zip(STARTS, DURATIONS, strict=True))
    ]  # fmt: skip
    total = sum(parts.values()) + 0.3
    itl = [86.0, 80.0, 79.0, 80.0, 70.0]
    record: dict[str, Any] = {
        "request_id": LONG, "client_request_id": None, "model": "smollm2:135m", "endpoint": "/v1/chat/completions",
        "state": "finished", "finish_reason": "length", "received_at": 1764430000.123, "received_ms": RECEIVED_MS,
        "prompt_tokens": 141, "cached_tokens": 0, "completion_tokens": 6, "priority": 0,
        "stations": _stations({**parts, "decode": 395.0, "finish": 0.5}),
        "ttft": {"total_ms": round(total, 3), "parts": parts, "unattributed_ms": 0.3},
        "e2e": {
            "total_ms": 849.3, "parts": {**parts, "decode": 395.0, "finish": 0.5},
            "unattributed_ms": round(849.3 - sum(parts.values()) - 395.5, 3),
        },
        "waits": [{"reason": "kv_blocks", "start_ms": 1.4, "duration_ms": 0.1}],
        "tpot_ms": 79.0, "e2e_ms": 849.3, "itl_ms": itl,
        "itl_causes": [{"index": 0, "ms": 86.0, "cause": "prefill_in_step", "step": 6, "with": [SHORTS[0]]}],
        "steps": steps, "preemptions": [],
        "prefix": {"hit_blocks": 0, "hit_tokens": 0, "stopped": "no_match", "from_request": None, "blocks": []},
        "kv_blocks": {"peak": 5, "at_finish": 5, "table": []},
        "token_times_ms": [442.3, 528.3, 608.3, 687.3, 767.3, 837.3],
        "stream": {"writes": 6, "blocked_ms": 0.0}, "sharing": list(SHORTS),
        "traceparent": None, "tracestate": None, "params": {"max_tokens": 6, "temperature": 0.0},
    }  # fmt: skip
    return record | changes


def _stations(parts: dict[str, float]) -> list[dict[str, Any]]:
    found, at = [], 0.0
    for name, duration in parts.items():
        if duration:
            process = "engine" if name in ("queue", "prefix", "prefill", "sample", "decode") else "frontend"
            found.append({"name": name, "process": process, "start_ms": round(at, 3), "duration_ms": duration})
            at += duration
    return found


def steps_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "step": step["step"], "start_ms": record["received_ms"] + step["start_ms"],
            "duration_ms": step["duration_ms"],
            "parts": {"schedule": 0.1, "prepare": 0.1, "compute": step["duration_ms"] - 0.5, "sample": 0.2,
                      "update": 0.1},
            "tokens": step["batch_tokens"], "budget": 64, "preempted": [], "admitted": [], "evicted_blocks": 0,
            "requests": [{"id": LONG, "kind": step["kind"], "from": step["from"], "tokens": step["tokens"]}],
            "kv": {"live": 8, "cached": 2, "free": 6}, "queue": 0, "running": 4,
        }
        for step in record["steps"]
    ]  # fmt: skip


def long_measures(**changes: Any) -> Measures:
    """Of the same request."""
    record = long_record()
    stations = dict.fromkeys(Station, 0.0) | {Station(name): ms for name, ms in record["e2e"]["parts"].items()}
    return Measures(
        ttft_ms=444.1,
        e2e_ms=849.3,
        queue_ms=0.1,
        prefill_ms=440.7,
        decode_ms=395.0,
        tpot_ms=79.0,
        gaps_ms=record["itl_ms"],
        stations_ms=stations,
        prompt_tokens=141,
        lengths=[6],
    )._replace(**changes)
