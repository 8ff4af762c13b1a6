"""Sends finished records as OpenTelemetry spans. Owner of the tracer and of its exporter's thread; the only file that
imports OpenTelemetry, which the extra `otel` installs.

Spans are made once a request has ended, with the times of its record: nothing is started or stopped on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sojourn import __version__
from sojourn.errors import StartupError
from sojourn.timeline.documents import asked_document, request_document
from sojourn.timeline.finished import View
from sojourn.timeline.measures import Measures, measures
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.records import RequestRecord
from sojourn.timeline.spans import Span, request_span

TRACES_PATH = "/v1/traces"
SEND_SECONDS = 3.0  # for one batch, attempts and pauses together; also how long a dead collector delays the end


class Tracing:
    """`close` sends what is left. A collector that doesn't answer costs log lines, never a request."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.name": "sojourn", "service.version": __version__})
        # Not the global provider, and with no exit handler: it belongs to this server alone.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("sojourn", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def view(self, recorder: Recorder) -> View:
        """What `FinishedRecords` calls for each record."""

        def export(record: RequestRecord) -> None:
            summary = request_document(recorder, record, record.ended_ns, full=False)
            self.export(summary | asked_document(record), measures(record))

        return export

    def export(self, record: Mapping[str, Any], times: Measures) -> None:
        """A summary that will not change any more, as GET /v1/requests has it, with what its client asked.

        With the client's traceparent its span is a child of the client's, and follows the client's sampling.
        """
        headers = {name: record[name] for name in ("traceparent", "tracestate") if record.get(name)}
        self._send(request_span(record, times), self._propagator.extract(headers, Context()), SpanKind.SERVER)

    def _send(self, span: Span, parent: Context, kind: SpanKind) -> None:
        sent = self._tracer.start_span(
            span.name, parent, kind=kind, attributes=span.attributes, start_time=span.start_ns
        )
        if span.error is not None:
            sent.set_attribute("error.type", span.error)
            sent.set_status(Status(StatusCode.ERROR, span.error))
        inside = set_span_in_context(sent, parent)
        for child in span.children:
            self._send(child, inside, SpanKind.INTERNAL)
        sent.end(end_time=span.end_ns)

    def close(self) -> None:
        self._provider.force_flush()
        self._provider.shutdown()


def otlp_tracing(endpoint: str) -> Tracing:
    """Tracing to an OTLP collector over HTTP. Raises StartupError for what is no address.

    A collector's bare address gets the standard path, as http://127.0.0.1:4318 alone answers nothing but 404.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StartupError(
            f"--otlp-traces-endpoint {endpoint} is no http address; write http://127.0.0.1:4318{TRACES_PATH}."
        )
    if parts.path in ("", "/"):
        endpoint = parts._replace(path=TRACES_PATH).geturl()
    return Tracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=SEND_SECONDS)))
