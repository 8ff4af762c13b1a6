"""The Prometheus view: the engine's latest EngineStats, histograms of finished requests, and the HTTP counters. Owner
of the HTTP counters; never counts tokens itself.

Names and label sets are vLLM's where it has the metric, behind the chosen prefix, so that dashboards made for it
work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sojourn.records import EngineStats, FinishReason
from sojourn.records.life import WaitingReason
from sojourn.timeline.histograms import RequestHistograms

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """`prefix` is "sojourn" (sojourn_...) or "vllm" (vllm:...). Without `finished` there are no histograms."""

    def __init__(self, prefix: Literal["sojourn", "vllm"], finished: RequestHistograms | None = None) -> None:
        self._finished = finished
        self._prefix = "sojourn_" if prefix == "sojourn" else "vllm:"
        self._requests: Counter[tuple[str, str, str]] = Counter()  # method, handler, status
        self._in_flight = 0

    def http_began(self) -> None:
        self._in_flight += 1

    def http_ended(self, method: str, handler: str, status: int) -> None:
        """`handler` is the route's path template, so that clients can't invent label values."""
        self._in_flight -= 1
        self._requests[method if method in _METHODS else "other", handler, str(status)] += 1

    def render(self, model_name: str, stats: EngineStats | None) -> bytes:
        """The text exposition. Without an engine only the HTTP metrics exist."""
        registry = CollectorRegistry(auto_describe=False)
        if stats is not None:
            registry.register(_Families(lambda: _engine_families(self._prefix, model_name, stats)))
        if stats is not None and (finished := self._finished) is not None:
            registry.register(_Families(lambda: finished.families(self._prefix, model_name)))
        registry.register(_Families(lambda: self._http_families(model_name)))
        return generate_latest(registry)

    def _http_families(self, model_name: str) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            self._prefix + "http_requests",
            "HTTP requests answered; status 499 means that the client left first.",
            labels=["model_name", "method", "handler", "status"],
        )
        for labels, count in sorted(self._requests.items()):
            requests.add_metric([model_name, *labels], count)
        yield requests
        yield _single(
            GaugeMetricFamily,
            self._prefix + "http_requests_in_flight",
            "HTTP requests being answered.",
            model_name,
            self._in_flight,
        )


class _Families(Collector):
    """A registry wants a collector; ours is made for one scrape."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def _engine_families(prefix: str, model_name: str, stats: EngineStats) -> Iterator[Metric]:
    for name, help, value in _gauges(stats):
        yield _single(GaugeMetricFamily, prefix + name, help, model_name, value)
    for name, help, value in _counters(stats):
        yield _single(CounterMetricFamily, prefix + name, help, model_name, value)
    for family, name, help, label, values in _by_label(stats):
        metric = family(prefix + name, help, labels=["model_name", label])
        for key, value in values.items():
            metric.add_metric([model_name, key], value)
        yield metric


def _gauges(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    blocks = stats.kv_live + stats.kv_cached + stats.kv_free
    yield "num_requests_running", "Requests being computed.", stats.num_running
    yield (
        "kv_cache_usage_perc",
        "Share of KV blocks held by requests, 0 to 1.",
        stats.kv_live / blocks if blocks else 0.0,
    )


def _counters(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    yield "num_preemptions", "Times a request lost its KV blocks to another.", stats.num_preemptions
    yield "prompt_tokens", "Prompt tokens, computed or found in the prefix cache.", stats.prompt_tokens
    yield "prompt_tokens_cached", "Prompt tokens found in the prefix cache.", stats.cached_tokens
    yield "tokens_recomputed", "Tokens computed again after a preemption.", stats.recomputed_tokens
    yield "generation_tokens", "Tokens generated.", stats.generation_tokens
    yield "prefix_cache_queries", "Tokens looked up in the prefix cache, at each admission.", stats.prefix_queries
    yield "prefix_cache_hits", "Tokens found in the prefix cache, at each admission.", stats.prefix_hits
    yield (
        "requests_aborted",
        "Requests whose client left before the end.",
        stats.finished.get(str(FinishReason.ABORT), 0),
    )
    yield "engine_steps", "Steps of the engine.", stats.step


def _by_label(stats: EngineStats) -> Iterator[tuple[_Family, str, str, str, Mapping[str, int]]]:
    """Every known label value is there from the start, at 0, so that a rate over it never misses its first event."""
    waiting = {str(reason): 0 for reason in WaitingReason} | stats.waiting_by_reason
    yield GaugeMetricFamily, "num_requests_waiting", "Requests waiting, by what they wait for.", "reason", waiting
    blocks = {"live": stats.kv_live, "cached": stats.kv_cached, "free": stats.kv_free}
    yield GaugeMetricFamily, "kv_blocks", "KV blocks; the three states add up to all of them.", "state", blocks
    finished = {str(reason): 0 for reason in FinishReason} | stats.finished
    yield CounterMetricFamily, "request_success", "Requests that ended, by how.", "finished_reason", finished


_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


def _single(family: _Family, name: str, help: str, model_name: str, value: float) -> Metric:
    metric = family(name, help, labels=["model_name"])
    metric.add_metric([model_name], value)
    return metric
