"""Fifty requests, streamed and not, with several choices, cached prefixes and preemptions; then every view is asked
about each of them. The numbers must be the same ones: in the reply, the record, the metrics, the spans, the exported
trace and the terminal."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from sojourn.cli.remote_server import RemoteServer
from sojourn.cli.trace import trace_command
from sojourn.records.life import Station
from sojourn.timeline.otel import Tracing
from sojourn.timeline.recorder import Recorder
from tests.server.conftest import Live, wait_for
from tests.server.test_operation import samples
from tests.server.test_whole_path import PATH, serving, streamed
from tests.timeline.test_perfetto import check_valid

REQUESTS = 50
ROUNDED_MS = 0.0011  # two roundings to a microsecond


@dataclass
class Seen:
    """What every view said about the same requests."""

    live: Live
    http: httpx.Client
    timings: dict[str, dict[str, Any]]  # by reply id, like the next two
    records: dict[str, dict[str, Any]]
    spans: dict[str, ReadableSpan]
    children: dict[int, list[ReadableSpan]]  # by span id
    metrics: dict[tuple[str, ...], float]

    def total(self, *name: str) -> float:
        return self.metrics["sojourn_" + name[0], *name[1:]]


def body(i: int) -> dict[str, Any]:
    """Prompts of 5 to 61 bytes, some with a common beginning; every fifth request has three choices."""
    prompt = ("shared beginning of many prompts " * 2)[: 8 * (i % 7)] + f"no {i:02d}"
    return {
        "prompt": prompt, "max_tokens": 3 + i % 29, "ignore_eos": True, "temperature": 0, "timings": True,
        "n": 3 if i % 5 == 0 else 1,
    }  # fmt: skip


def ask(http: httpx.Client, i: int) -> tuple[str, dict[str, Any]]:
    if i % 2:
        reply = http.post(PATH, json=body(i)).json()
        return reply["id"], reply["timings"]
    chunks = [json.loads(data) for data in streamed(http, body(i)) if data != "[DONE]"]
    return chunks[-1]["id"], chunks[-1]["timings"]


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    exporter, recorder = InMemorySpanExporter(), Recorder()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    options: dict[str, Any] = {
        "max_num_seqs": 8,
        "engine_options": {"num_blocks": 32, "budget": 32},  # too few blocks for eight of them
        "script": {"seconds_per_step": 0.001},
    }
    with (
        serving([], recorder=recorder, views=[tracing.view(recorder)], **options) as (live, http),
        concurrent.futures.ThreadPoolExecutor(20) as pool,
    ):
        timings = dict(pool.map(lambda i: ask(http, i), range(REQUESTS)))
        wait_for(lambda: samples(http.get("/metrics").text)["sojourn_e2e_request_latency_seconds_count",] == REQUESTS)
        records = {request_id: http.get(f"/v1/requests/{request_id}").json() for request_id in timings}
        children = defaultdict(list)
        for span in exporter.get_finished_spans():
            if span.kind is not SpanKind.SERVER:
                children[span.parent.span_id].append(span)
        spans = {
            s.attributes["gen_ai.response.id"]: s for s in exporter.get_finished_spans() if s.kind is SpanKind.SERVER
        }
        yield Seen(live, http, timings, records, spans, children, samples(http.get("/metrics").text))


def choices(record: dict[str, Any]) -> list[dict[str, Any]]:
    return record.get("choices") or [record]


def test_the_load_had_what_makes_it_hard(seen: Seen) -> None:
    assert len(seen.timings) == len(seen.records) == len(seen.spans) == REQUESTS
    every = [choice for record in seen.records.values() for choice in choices(record)]
    assert sum(len(choice["preemptions"]) for choice in every) > 0
    assert sum(choice["cached_tokens"] for choice in every) > 0
    assert {record["streamed"] for record in seen.records.values()} == {True, False}


def test_the_reply_and_the_record(seen: Seen) -> None:
    for request_id, timings in seen.timings.items():
        record = seen.records[request_id]
        assert timings["ttft"] == record["ttft"]
        assert timings["tpot_ms"] == record["tpot_ms"]
        assert timings["cached_tokens"] == record["cached_tokens"]
        assert timings["preemptions"] == len(record["preemptions"])
        assert timings["predicted_n"] == sum(choice["completion_tokens"] for choice in choices(record))
        assert timings["predicted_ms"] == pytest.approx(sum(record["itl_ms"]), abs=ROUNDED_MS * len(record["itl_ms"]))
        assert timings["e2e_ms"] <= record["e2e_ms"]  # asked for before the last byte was written


def test_the_metrics_are_the_sums_of_the_records(seen: Seen) -> None:
    records = list(seen.records.values())
    every = [choice for record in records for choice in choices(record)]
    expected = {
        "time_to_first_token": [record["ttft"]["total_ms"] for record in records],
        "e2e_request_latency": [record["e2e_ms"] for record in records],
        "request_queue_time": [record["e2e"]["parts"]["queue"] for record in records],
        "request_time_per_output_token": [record["tpot_ms"] for record in records],
        "request_prefill_time": [r["token_times_ms"][0] - r["steps"][0]["start_ms"] for r in records],
        "request_decode_time": [r["token_times_ms"][-1] - r["token_times_ms"][0] for r in records],
        "inter_token_latency": [gap for choice in every for gap in choice["itl_ms"]],
        "time_per_output_token": [gap for choice in every for gap in choice["itl_ms"]],
    }
    for name, values in expected.items():
        assert seen.total(f"{name}_seconds_count") == len(values), name
        total = seen.total(f"{name}_seconds_sum") * 1000
        assert total == pytest.approx(sum(values), abs=ROUNDED_MS * len(values)), name
    for station in Station:
        total = seen.total("request_station_time_seconds_sum", station) * 1000
        assert total == pytest.approx(sum(record["e2e"]["parts"][station] for record in records)), station
        assert seen.total("request_station_time_seconds_count", station) == REQUESTS
    generated = sum(choice["completion_tokens"] for choice in every)
    assert seen.total("request_generation_tokens_sum") == seen.total("generation_tokens_total") == generated
    assert seen.total("request_prompt_tokens_sum") == sum(record["prompt_tokens"] for record in records)
    assert seen.total("num_preemptions_total") == sum(len(choice["preemptions"]) for choice in every)
    assert seen.total("request_success_total", "length") == len(every)


def test_the_spans_have_the_records_times(seen: Seen) -> None:
    for request_id, record in seen.records.items():
        span = seen.spans[request_id]
        assert (span.end_time - span.start_time) / 1e6 == pytest.approx(record["e2e_ms"], abs=ROUNDED_MS)
        assert span.start_time / 1e9 == pytest.approx(record["received_at"], abs=1e-6)
        attributes = span.attributes
        assert attributes["gen_ai.latency.time_to_first_token"] * 1000 == pytest.approx(record["ttft"]["total_ms"])
        assert attributes["gen_ai.latency.time_in_queue"] * 1000 == pytest.approx(record["e2e"]["parts"]["queue"])
        assert attributes["gen_ai.usage.input_tokens"] == record["prompt_tokens"]
        assert attributes["gen_ai.usage.output_tokens"] == sum(c["completion_tokens"] for c in choices(record))
        assert attributes["gen_ai.request.max_tokens"] == record["params"]["max_tokens"]
        lengths: dict[str, float] = defaultdict(float)
        for child in seen.children[span.context.span_id]:
            lengths[child.name] += (child.end_time - child.start_time) / 1e6
        check_parts(lengths, record)


def test_the_exported_trace_has_the_records_times(seen: Seen) -> None:
    trace = seen.http.get("/v1/trace", params={"limit": 5000}).json()
    check_valid(trace)
    assert trace["otherData"]["has_more"] is False
    lives: dict[str, list[float]] = defaultdict(list)
    lengths: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in trace["traceEvents"]:
        if event["ph"] not in "be":
            continue
        sign = 1 if event["ph"] == "e" else -1
        if event["name"] == event["id"]:
            lives[event["id"]].append(event["ts"])
        else:
            lengths[event["id"]][event["name"]] += sign * event["ts"] / 1000
    for request_id, record in seen.records.items():
        begin, end = lives[request_id]
        assert (end - begin) / 1000 == pytest.approx(record["e2e_ms"], abs=ROUNDED_MS)
        assert begin / 1000 == pytest.approx(record["received_ms"], abs=ROUNDED_MS)
        check_parts(lengths[request_id], record)
    arrows = sum(event["ph"] == "s" for event in trace["traceEvents"])
    assert arrows == sum(
        len({step["step"] for step in choice["steps"]})
        for record in seen.records.values()
        for choice in choices(record)
    )


def check_parts(lengths: dict[str, float], record: dict[str, Any]) -> None:
    """Stations' lengths as another view has them, against the record's account."""
    for station, ms in record["e2e"]["parts"].items():
        stays = sum(stay["name"] == station for stay in record["stations"])
        assert lengths.get(station, 0.0) == pytest.approx(ms, abs=2 * ROUNDED_MS * (stays + 1)), station


def test_a_requests_own_trace_is_its_part_of_it(seen: Seen) -> None:
    for request_id, record in list(seen.records.items())[::5]:
        trace = seen.http.get(f"/v1/requests/{request_id}/trace").json()
        check_valid(trace)
        assert {event["id"] for event in trace["traceEvents"] if event["ph"] == "b"} == {request_id}
        numbers = {step["step"] for choice in choices(record) for step in choice["steps"]}
        shown = [event["name"] for event in trace["traceEvents"] if event["name"].startswith("step ")]
        assert shown == [f"step {number}" for number in range(min(numbers), max(numbers) + 1)]


def test_a_trace_since_a_time_holds_what_came_later(seen: Seen) -> None:
    records = sorted(seen.records.values(), key=lambda record: record["received_ms"])
    later = records[30:]
    trace = seen.http.get("/v1/trace", params={"since": records[29]["received_ms"]}).json()
    check_valid(trace)
    assert {e["id"] for e in trace["traceEvents"] if e["ph"] == "b"} == {record["request_id"] for record in later}
    short = seen.http.get("/v1/trace", params={"limit": 3}).json()
    assert short["otherData"]["has_more"] is True
    assert sum(event["name"].startswith("step ") for event in short["traceEvents"]) == 3


def test_the_terminal_prints_the_records_numbers(seen: Seen) -> None:
    server = RemoteServer(seen.live.url, None)
    for request_id, record in seen.records.items():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            trace_command(request_id, None, server, "en")
        text = printed.getvalue()
        steps = [step for choice in choices(record) for step in choice["steps"]]
        assert re.findall(r"step +(\d+) ", text) == [str(step["step"]) for step in steps]
        assert f"TTFT {record['ttft']['total_ms']:.1f} ms" in text
        assert f"TPOT {record['tpot_ms']:.1f} ms" in text
        assert f"end to end {record['e2e_ms']:.1f} ms" in text
        assert text.count("preempted at") == sum(len(choice["preemptions"]) for choice in choices(record))
        for step in steps:
            if step["kind"] == "prefill":
                assert f"prefill tokens {step['from']}-{step['to']}" in text


def test_unknown_requests_have_no_trace(seen: Seen) -> None:
    reply = seen.http.get("/v1/requests/none/trace")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
