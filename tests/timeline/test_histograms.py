"""Histograms of finished requests, under both prefixes: counts, sums, bounds, and what other tools expect of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Literal

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from sojourn.records import EngineStats
from sojourn.timeline.histograms import RequestHistograms
from sojourn.timeline.measures import Measures
from sojourn.timeline.metrics import Metrics
from tests.timeline.samples import long_measures

DASHBOARD = Path(__file__).parents[1] / "data" / "metrics" / "vllm_dashboard_series.txt"
STATS = EngineStats(step=9, num_running=2, kv_live=5, kv_cached=6, kv_free=7, finished={"length": 4})


def text(*requests: Measures, prefix: Literal["sojourn", "vllm"] = "sojourn") -> str:
    histograms = RequestHistograms()
    metrics = Metrics(prefix, histograms)
    metrics.http_began()
    metrics.http_ended("GET", "/health", 200)
    for measures in requests:
        histograms.add(measures)
    return metrics.render("m", STATS).decode()


def families(exposition: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(exposition)}


def value(exposition: str, name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if sample.name == "sojourn_" + name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, labels)
    return found[0]


def test_one_observation_per_request_and_one_per_gap() -> None:
    exposition = text(long_measures(), long_measures(), long_measures())
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time",
                 "request_decode_time", "request_inference_time", "request_time_per_output_token"):  # fmt: skip
        assert value(exposition, f"{name}_seconds_count") == 3, name
    for name in ("inter_token_latency", "time_per_output_token"):
        assert value(exposition, f"{name}_seconds_count") == 15
        assert value(exposition, f"{name}_seconds_sum") == pytest.approx(3 * 0.395)
    assert value(exposition, "time_to_first_token_seconds_sum") == pytest.approx(3 * 0.4441)
    assert value(exposition, "request_prefill_time_seconds_sum") == pytest.approx(3 * 0.4407)
    assert value(exposition, "request_generation_tokens_sum") == 18
    assert value(exposition, "request_prompt_tokens_bucket", le="200.0") == 3
    assert value(exposition, "request_prompt_tokens_bucket", le="100.0") == 0


def test_every_station_is_counted_for_every_request() -> None:
    exposition = text(long_measures(), long_measures())
    stations = families(exposition)["sojourn_request_station_time_seconds"]
    counts = {s.labels["station"]: s.value for s in stations.samples if s.name.endswith("_count")}
    assert len(counts) == 15
    assert set(counts.values()) == {2}
    assert value(exposition, "request_station_time_seconds_sum", station="decode") == pytest.approx(0.79)


def test_b71_long_times_have_buckets_of_their_own() -> None:
    slow = [long_measures(e2e_ms=ms) for ms in (0.9, 31_000, 61_000, 500_000, 600_000, 601_000)]
    exposition = text(*slow)
    for bound, count in (("0.001", 1), ("30.0", 1), ("45.0", 2), ("300.0", 3), ("600.0", 5), ("+Inf", 6)):
        assert value(exposition, "e2e_request_latency_seconds_bucket", le=bound) == count, bound


def test_a_request_without_tokens_counts_only_where_it_was() -> None:
    early = long_measures(ttft_ms=None, prefill_ms=None, decode_ms=None, tpot_ms=None, gaps_ms=[], lengths=[0])
    exposition = text(early)
    assert value(exposition, "time_to_first_token_seconds_count") == 0
    assert value(exposition, "request_decode_time_seconds_count") == 0
    assert value(exposition, "e2e_request_latency_seconds_count") == 1
    assert value(exposition, "request_queue_time_seconds_count") == 1


def test_the_longest_choice_and_all_of_them_together() -> None:
    exposition = text(long_measures(lengths=[2, 6]))
    assert value(exposition, "request_generation_tokens_sum") == 8
    assert value(exposition, "request_max_num_generation_tokens_sum") == 6


def test_vllms_dashboard_finds_every_series_it_asks_for() -> None:
    lines = [line.split() for line in DASHBOARD.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 20
    labels = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text(long_measures(), prefix="vllm"))
        for sample in family.samples
    }
    for name, *grouped in lines:
        assert {"model_name", *grouped} <= labels.get(name, set()), name


if shutil.which("promtool"):  # `make test-tools` installs it

    def test_prometheus_own_linter_finds_nothing() -> None:
        ran = subprocess.run(
            ["promtool", "check", "metrics"], input=text(long_measures()), capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
