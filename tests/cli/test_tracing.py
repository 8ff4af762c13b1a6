"""`sojourn serve --otlp-traces-endpoint`: spans of real requests at a collector, and what stops it from starting."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sojourn.cli.serve import _start_tracing
from sojourn.errors import StartupError
from sojourn.timeline.recorder import Recorder
from tests.servers import Server

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.seen.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def collector() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as running:
        running.seen = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_requests_span_continues_the_clients_trace(collector) -> None:
    endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
    server = Server("smollm2:135m", "--kv-cache-memory", "100MB", "--otlp-traces-endpoint", endpoint)
    try:
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
        headers = {"Content-Type": "application/json", "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        request = urllib.request.Request(server.url() + "/v1/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            reply = json.load(response)
        server.process.terminate()  # what is still unsent goes out before it ends
        assert server.end() == 0
    finally:
        server.kill()
    spans = [
        span
        for message in collector.seen
        for resource in ExportTraceServiceRequest.FromString(message).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
    (root,) = [span for span in spans if span.parent_span_id.hex() == PARENT_ID]
    attributes = {each.key: each.value for each in root.attributes}
    assert attributes["gen_ai.response.id"].string_value == reply["id"]
    assert attributes["gen_ai.usage.output_tokens"].int_value == reply["usage"]["completion_tokens"]
    stations = {span.name for span in spans if span.parent_span_id == root.span_id}
    assert {"receive", "render", "tokenize", "prefill", "decode"} <= stations


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sojourn.timeline.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartupError, match=r"pip install 'sojourn\[otel\]'"):
        _start_tracing("http://127.0.0.1:4318", Recorder())


def test_without_records_there_is_nothing_to_send(sojourn) -> None:
    ran = sojourn("serve", "--port", "0", "--otlp-traces-endpoint", "http://x", env={"SOJOURN_RECORDS": "0"})
    assert ran.code == 1
    assert "SOJOURN_RECORDS=0" in ran.err


def test_what_is_no_address_stops_the_start(sojourn) -> None:
    ran = sojourn("serve", "--port", "0", "--otlp-traces-endpoint", "localhost:4317")
    assert ran.code == 1
    assert "no http address" in ran.err.strip().splitlines()[-1]
