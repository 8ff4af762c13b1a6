"""Histograms of finished requests, fed from their records: one observation per request, and one per token for the
time between tokens. Owner of the buckets and their counts.

Names are vLLM's where it has the metric. Seconds, from 1 ms to 10 minutes: a request that waited for long is the one
to find, so it must not vanish in +Inf.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from sojourn.records.life import Station
from sojourn.timeline.measures import Measures, measures
from sojourn.timeline.records import RequestRecord

SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0,
    15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))

# What is measured of a request, and what that is. Milliseconds in the record, seconds here.
_TIMES = {
    "time_to_first_token": "Time from the accepted connection to the first byte of content written.",
    "inter_token_latency": "Time between two tokens of a request.",
    "time_per_output_token": "The same as inter_token_latency, under the name that older dashboards ask for.",
    "request_time_per_output_token": "Mean time between the tokens of a request.",
    "e2e_request_latency": "Time from the accepted connection to the last byte written.",
    "request_queue_time": "Time a request waited in the engine before it was first computed.",
    "request_prefill_time": "Time from the first step of a request to its first token.",
    "request_decode_time": "Time from the first token of a request to its last.",
    "request_inference_time": "Time from the first step of a request to its last token.",
}
_COUNTS = {
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "Tokens generated for a request, all its choices together.",
    "request_max_num_generation_tokens": "Tokens generated for the longest choice of a request.",
}
_STATION = "request_station_time"


class Histogram:
    """Counts per bucket, not yet cumulative; the last one is for what exceeds all bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        family.add_metric(labels, buckets, self._sum)


def _milliseconds(of: Measures) -> dict[str, Sequence[float | None]]:
    """What to observe under each name of _TIMES; None where the request never got so far."""
    return {
        "time_to_first_token": [of.ttft_ms],
        "inter_token_latency": of.gaps_ms,
        "time_per_output_token": of.gaps_ms,
        "request_time_per_output_token": [of.tpot_ms],
        "e2e_request_latency": [of.e2e_ms],
        "request_queue_time": [of.queue_ms],
        "request_prefill_time": [of.prefill_ms],
        "request_decode_time": [of.decode_ms],
        "request_inference_time": [of.inference_ms],
    }


class RequestHistograms:
    """One set for the server's life: it goes on counting when the engine is restarted."""

    def __init__(self) -> None:
        self._times = {name: Histogram(SECONDS) for name in _TIMES}
        self._counts = {name: Histogram(TOKENS) for name in _COUNTS}
        self._stations = {station: Histogram(SECONDS) for station in Station}

    def observe(self, record: RequestRecord) -> None:
        """Of a record that is complete and whose request reached the engine."""
        self.add(measures(record))

    def add(self, of: Measures) -> None:
        for name, values in _milliseconds(of).items():
            histogram = self._times[name]
            for value in values:
                if value is not None:
                    histogram.observe(value / 1000)
        self._counts["request_prompt_tokens"].observe(of.prompt_tokens)
        self._counts["request_generation_tokens"].observe(sum(of.lengths))
        self._counts["request_max_num_generation_tokens"].observe(max(of.lengths))
        for station, histogram in self._stations.items():
            histogram.observe(of.stations_ms[station] / 1000)

    def families(self, prefix: str, model_name: str) -> Iterator[Metric]:
        for texts, unit, histograms in ((_TIMES, "_seconds", self._times), (_COUNTS, "", self._counts)):
            for name, text in texts.items():
                family = HistogramMetricFamily(prefix + name + unit, text, labels=["model_name"])
                histograms[name].add_to(family, [model_name])
                yield family
        stations = HistogramMetricFamily(
            prefix + _STATION + "_seconds",
            "Time of a request's whole life spent in each station; 0 where it never was.",
            labels=["model_name", "station"],
        )
        for station, histogram in self._stations.items():
            histogram.add_to(stations, [model_name, station])
        yield stations
