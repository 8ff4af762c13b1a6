"""A server on the micro chat model: two processes, real HTTP, the official client."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.servers import Server

MICRO = Path(__file__).parents[1] / "data" / "micro" / "llama-chat"


class Gauges:
    """The engine's counters as /metrics shows them."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, name: str, **labels: str) -> float:
        """The sum over all samples with these labels."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        total = 0.0
        for line in text.splitlines():
            match = re.fullmatch(rf"sojourn_{name}(?:{{(.*)}})? (\S+)", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                total += float(match[2])
        return total

    def until(self, condition: Callable[[Gauges], bool], *, seconds: float) -> float:
        """Wait until the condition holds; returns how long that took."""
        start = time.monotonic()
        while not condition(self):
            assert time.monotonic() - start < seconds, "it did not come to hold in time"
            time.sleep(0.01)
        return time.monotonic() - start


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server(
        str(MICRO), "--served-model-name", "micro", "--num-kv-blocks", "160", "--max-num-seqs", "4", "--no-restart"
    )
    running.url()
    yield running
    running.kill()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url() + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def gauges(server: Server) -> Gauges:
    return Gauges(server.url())
