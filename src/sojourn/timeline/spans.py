"""A finished record as spans: one for the request, one inside it for each stay at a station. Pure functions over the
summaries of GET /v1/requests; knows no OpenTelemetry library.

Attributes follow OpenTelemetry's GenAI conventions. The gen_ai.latency ones, in seconds, and gen_ai.request.id are
vLLM's additions to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sojourn.timeline.measures import Measures

Record = Mapping[str, Any]
Value = str | bool | int | float | list[str]

_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
_PARAMETERS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)  # fmt: skip  each becomes gen_ai.request.<name>


@dataclass(frozen=True, slots=True)
class Span:
    """Times are Unix nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    error: str | None = None  # code of what ended the request, if something did
    children: list[Span] = field(default_factory=list)


def request_span(record: Record, times: Measures) -> Span:
    """Of a request that is over."""
    origin_ns: int = round(record["received_at"] * 1e9)
    endpoint: str = record["endpoint"]
    operation = _OPERATIONS.get(endpoint, endpoint)

    def at(ms: float) -> int:
        return origin_ns + round(ms * 1e6)

    children = [
        Span(
            station["name"],
            at(station["start_ms"]),
            at(station["start_ms"] + station["duration_ms"]),
            {"sojourn.process": station["process"]},
        )
        for station in record["stations"]
    ]
    attributes = {name: value for name, value in _attributes(record, times, operation).items() if value is not None}
    name = f"{operation} {record['model']}".rstrip()
    return Span(name, origin_ns, at(record["e2e_ms"]), attributes, _error(record), children)


def _attributes(record: Record, times: Measures, operation: str) -> dict[str, Value | None]:
    choices = record.get("choices") or [record]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    parameters = record.get("params") or {}
    ttft = _seconds(times.ttft_ms)
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "sojourn",
        "gen_ai.request.model": record["model"],
        "gen_ai.response.model": record["model"],
        "gen_ai.response.id": record["request_id"],
        "gen_ai.response.finish_reasons": reasons or None,
        "gen_ai.response.time_to_first_chunk": ttft,
        "gen_ai.usage.input_tokens": record["prompt_tokens"],
        "gen_ai.usage.output_tokens": sum(times.lengths),
        "gen_ai.usage.cache_read.input_tokens": record["cached_tokens"],
        "gen_ai.request.choice.count": len(choices) if len(choices) > 1 else None,
        **{f"gen_ai.request.{name}": parameters.get(name) for name in _PARAMETERS},
        "gen_ai.request.id": record["client_request_id"],
        "gen_ai.latency.time_in_queue": _seconds(times.queue_ms),
        "gen_ai.latency.time_to_first_token": ttft,
        "gen_ai.latency.e2e": _seconds(times.e2e_ms),
        "gen_ai.latency.time_in_model_prefill": _seconds(times.prefill_ms),
        "gen_ai.latency.time_in_model_decode": _seconds(times.decode_ms),
        "gen_ai.latency.time_in_model_inference": _seconds(times.inference_ms),
        "sojourn.state": record["state"],
        "sojourn.preemptions": len(record["preemptions"]),
    }


def _error(record: Record) -> str | None:
    """An aborted request is its client's doing: no error of ours."""
    return (record.get("error") or "error") if record["state"] == "failed" else None


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000
