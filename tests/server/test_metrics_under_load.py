"""/metrics while requests come, wait, lose their blocks, and leave: every scrape is consistent in itself, and what was
counted once stays counted."""

from __future__ import annotations

import concurrent.futures
import itertools
import shutil
import subprocess
import threading
from typing import Any

import httpx
import pytest

from sojourn.config import ServerConfig
from tests.server.conftest import wait_for
from tests.server.test_disconnects import send
from tests.server.test_operation import samples
from tests.server.test_whole_path import ENDLESS, PATH, serving

NUM_BLOCKS = 40
PRESSED: dict[str, Any] = {
    "max_num_seqs": 8,
    "engine_options": {"num_blocks": NUM_BLOCKS},
    "script": {"seconds_per_step": 0.001},
}


def test_every_scrape_adds_up_and_nothing_counts_backwards() -> None:
    scrapes: list[dict[tuple[str, ...], float]] = []
    done = threading.Event()
    with serving([], **PRESSED) as (live, http), concurrent.futures.ThreadPoolExecutor(17) as pool:

        def scrape() -> None:
            with httpx.Client(base_url=live.url, timeout=30, trust_env=False) as other:
                while not done.is_set():
                    scrapes.append(samples(other.get("/metrics").text))

        scraping = pool.submit(scrape)
        bodies = [{"prompt": f"number {i}" * (1 + i % 4), "max_tokens": 20, "ignore_eos": True} for i in range(60)]
        replies = list(pool.map(lambda body: http.post(PATH, json=body).status_code, bodies))
        done.set()
        scraping.result()
        wait_for(lambda: samples(http.get("/metrics").text)["sojourn_e2e_request_latency_seconds_count",] == 60)
    assert set(replies) == {200}
    assert max(each["sojourn_num_requests_running",] for each in scrapes) > 1
    for each in scrapes:
        blocks = [each["sojourn_kv_blocks", state] for state in ("live", "cached", "free")]
        assert sum(blocks) == NUM_BLOCKS
        assert min(blocks) >= 0
        first_tokens = each["sojourn_time_to_first_token_seconds_count",]
        assert first_tokens == each["sojourn_e2e_request_latency_seconds_count",]
        assert first_tokens <= each["sojourn_request_success_total", "length"]
    counters = [name for name in scrapes[0] if name[0].endswith(("_total", "_count", "_sum", "_bucket"))]
    for before, after in itertools.pairwise(scrapes):
        assert all(before[name] <= after[name] for name in counters)


def test_a_request_whose_client_left_counts_and_one_that_was_refused_does_not() -> None:
    with serving([], engine_options={"num_blocks": 1024}, script={"seconds_per_step": 0.002}) as (live, http):

        def metric(name: str) -> float:
            return samples(http.get("/metrics").text)["sojourn_" + name,]

        assert http.post(PATH, json={"prompt": ""}).status_code == 400
        raw = send(live, PATH, {"prompt": "x", **ENDLESS})
        wait_for(lambda: metric("num_requests_running") == 1)
        raw.close()
        wait_for(lambda: metric("e2e_request_latency_seconds_count") == 1)
        assert metric("requests_aborted_total") == 1
        assert http.post(PATH, json={"prompt": "y", "max_tokens": 2}).status_code == 200
        wait_for(lambda: metric("e2e_request_latency_seconds_count") == 2)
        assert metric("request_queue_time_seconds_count") == 2


@pytest.mark.parametrize("prefix", ["sojourn_", "vllm:"])
def test_a_live_scrape_has_the_chosen_names(prefix: Any) -> None:
    config = ServerConfig(metrics_prefix="vllm" if prefix == "vllm:" else "sojourn")
    with serving([], config=config) as (_, http):
        http.post(PATH, json={"prompt": "hello", "max_tokens": 3})
        text = http.get("/metrics").text
    names = {name for name, *_ in samples(text)}
    assert prefix + "inter_token_latency_seconds_bucket" in names
    assert all(name.startswith(prefix) for name in names)
    if prefix == "sojourn_" and shutil.which("promtool"):  # `make test-tools` installs it
        ran = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
