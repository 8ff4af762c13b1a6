"""Finished records as OpenTelemetry spans, as an exporter receives them."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sojourn.errors import StartupError
from sojourn.timeline.otel import Tracing, otlp_tracing
from tests.timeline.samples import LONG, long_measures, long_record

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def exported(measured: dict[str, object] | None = None, **changes: object) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """The span of the request, and those of its stations."""
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    tracing.export(long_record(**changes), long_measures(**(measured or {})))
    tracing.close()
    spans = exporter.get_finished_spans()
    (root,) = [span for span in spans if span.kind is SpanKind.SERVER]
    return root, [span for span in spans if span is not root]


def test_the_request_is_a_span_with_the_records_times_and_current_names() -> None:
    root, _ = exported()
    assert root.name == "chat smollm2:135m"
    assert root.start_time == pytest.approx(1764430000.123e9, abs=1000)
    assert root.end_time - root.start_time == 849_300_000
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "smollm2:135m",
        "gen_ai.response.id": LONG,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 141,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.latency.time_to_first_token": pytest.approx(0.4441),
        "gen_ai.latency.e2e": pytest.approx(0.8493),
        "gen_ai.latency.time_in_queue": pytest.approx(0.0001),
        "gen_ai.latency.time_in_model_prefill": pytest.approx(0.4407),
        "gen_ai.latency.time_in_model_decode": pytest.approx(0.395),
        "gen_ai.latency.time_in_model_inference": pytest.approx(0.8357),
    }
    assert {name: root.attributes[name] for name in expected} == expected
    assert root.status.status_code is StatusCode.UNSET
    assert root.resource.attributes["service.name"] == "sojourn"


def test_each_station_is_a_child_in_its_place() -> None:
    root, children = exported()
    record = long_record()
    assert [child.name for child in children] == [station["name"] for station in record["stations"]]
    for child, station in zip(children, record["stations"], strict=True):
        assert child.parent.span_id == root.context.span_id
        assert child.start_time - root.start_time == round(station["start_ms"] * 1e6)
        assert child.end_time - child.start_time == pytest.approx(station["duration_ms"] * 1e6, abs=2)
        assert child.attributes == {"sojourn.process": station["process"]}


def test_the_clients_trace_goes_on() -> None:
    root, children = exported(traceparent=f"00-{TRACE_ID}-{PARENT_ID}-01", tracestate="vendor=x")
    assert format(root.context.trace_id, "032x") == TRACE_ID
    assert format(root.parent.span_id, "016x") == PARENT_ID
    assert {child.context.trace_id for child in children} == {root.context.trace_id}
    assert root.context.trace_state.get("vendor") == "x"


def test_a_client_that_does_not_sample_is_not_sampled() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        exported(traceparent=f"00-{TRACE_ID}-{PARENT_ID}-00")


@pytest.mark.parametrize("header", [None, "", "nonsense", f"00-{'0' * 32}-{PARENT_ID}-01"])
def test_without_a_usable_header_a_trace_begins(header: str | None) -> None:
    root, _ = exported(traceparent=header)
    assert root.parent is None


def test_a_failure_is_an_error_and_an_aborted_request_is_none() -> None:
    failed, _ = exported(state="failed", error="request_failed")
    assert (failed.status.status_code, failed.attributes["error.type"]) == (StatusCode.ERROR, "request_failed")
    aborted, _ = exported({"ttft_ms": None}, state="aborted", finish_reason=None)
    assert aborted.status.status_code is StatusCode.UNSET
    assert "gen_ai.latency.time_to_first_token" not in aborted.attributes
    assert "gen_ai.response.finish_reasons" not in aborted.attributes


def test_several_choices_are_one_span() -> None:
    share = {"finish_reason": "stop"}
    root, _ = exported({"lengths": [3, 3]}, choices=[share, share])
    assert root.attributes["gen_ai.request.choice.count"] == 2
    assert root.attributes["gen_ai.usage.output_tokens"] == 6
    assert root.attributes["gen_ai.response.finish_reasons"] == ("stop", "stop")


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, self.headers["Content-Type"], body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.mark.parametrize(("given", "asked"), [("", "/v1/traces"), ("/v1/traces", "/v1/traces"), ("/other", "/other")])
def test_spans_reach_a_collector_over_http(given: str, asked: str) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.seen = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        tracing = otlp_tracing(f"http://127.0.0.1:{server.server_address[1]}{given}")
        tracing.export(long_record(), long_measures())
        tracing.close()
        server.shutdown()
        thread.join()
    ((path, kind, body),) = server.seen
    assert (path, kind) == (asked, "application/x-protobuf")
    assert LONG.encode() in body


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://x:4317", "http://"])
def test_what_is_no_http_address_is_refused(endpoint: str) -> None:
    with pytest.raises(StartupError, match="no http address"):
        otlp_tracing(endpoint)


def test_the_server_does_without_the_library() -> None:
    code = "import sys, sojourn.cli.main, sojourn.server.serve; print('opentelemetry.sdk' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
