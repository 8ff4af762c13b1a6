"""Five hundred requests of every kind, sixteen at a time, over real HTTP and the real scheduler: every life adds up.

The model is scripted, with few KV blocks and few slots, so requests queue, share prefixes, lose their blocks. Clients
stream or not, read slowly, or leave at some moment. The size of the unattributed part is printed, not asserted: here
the processor is shared with everything else.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
import socket
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from sojourn.config import FrontendConfig
from sojourn.frontend.async_llm import AsyncLLM
from sojourn.timeline.account import end_to_end, segments, ttft
from sojourn.timeline.documents import request_document
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.records import RequestRecord
from tests.frontend.llms import scripted
from tests.server.conftest import Live, running, wait_for
from tests.timeline.simulated import check_prefill, check_tiles

REQUESTS = 500
CONCURRENT = 16
NUM_BLOCKS = 96
SYSTEM_PROMPT = "the same beginning for many requests, long enough for several blocks. "


@contextlib.contextmanager
def serving(recorder: Recorder, **options: Any) -> Iterator[Live]:
    @contextlib.asynccontextmanager
    async def around() -> AsyncIterator[AsyncLLM]:
        async with scripted(recorder=recorder, **options) as (llm, _):
            yield llm

    with running(None, around=around(), recorder=recorder) as live:
        with httpx.Client(base_url=live.url, trust_env=False) as http:
            wait_for(lambda: http.get("/ready").status_code == 200)
        yield live


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    """After the mix."""
    made = Recorder(max_requests=REQUESTS)
    options = {"num_blocks": NUM_BLOCKS, "block_size": 8, "budget": 64}
    limits = FrontendConfig(max_num_queued_reqs=11)
    with serving(made, engine_options=options, max_num_seqs=6, frontend=limits) as live:
        asyncio.run(mix(live))
        wait_for(lambda: not made.live(), seconds=30)
        wait_for(lambda: all(record.complete for record in made.requests(limit=REQUESTS)[0]), seconds=30)
        yield made


async def mix(live: Live) -> None:
    rng = random.Random(4)
    kinds = rng.choices(["whole", "stream", "leave", "slow", "wrong"], [30, 40, 15, 10, 5], k=REQUESTS)
    jobs = iter([(kind, body(rng, kind), rng.random()) for kind in kinds])
    limits = httpx.Limits(max_connections=2 * CONCURRENT)
    async with httpx.AsyncClient(base_url=live.url, timeout=120, trust_env=False, limits=limits) as http:

        async def worker() -> None:
            for kind, request, fraction in jobs:
                await one(http, live, kind, request, fraction)

        await asyncio.gather(*(worker() for _ in range(CONCURRENT)))


def body(rng: random.Random, kind: str) -> dict[str, Any]:
    text = (SYSTEM_PROMPT if rng.random() < 0.4 else "") + "".join(rng.choices("abcdefgh ", k=rng.randint(1, 200)))
    request: dict[str, Any] = {"prompt": text, "max_tokens": rng.randint(1, 60), "seed": rng.randrange(100)}
    request["stream"] = kind in {"stream", "slow"} or (kind == "leave" and rng.random() < 0.7)
    if rng.random() < 0.1:
        request["n"] = 2
    if rng.random() < 0.1:
        request["stop"] = rng.choice("abcdefgh")
    if kind == "slow":
        request |= {"max_tokens": 500, "logprobs": 20, "n": 1}  # more than a socket's buffers hold
    return request | ({"temperature": 99} if kind == "wrong" else {})


async def one(http: httpx.AsyncClient, live: Live, kind: str, request: dict[str, Any], fraction: float) -> None:
    if kind == "slow":
        await asyncio.to_thread(read_slowly, live, request)
    elif kind == "leave":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(fraction * 0.3):
                await http.post("/v1/completions", json=request)
    else:
        await http.post("/v1/completions", json=request)


def read_slowly(live: Live, request: dict[str, Any]) -> None:
    data = json.dumps(request).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(live.address)
        raw.sendall(head.encode() + b"\r\nconnection: close\r\n\r\n" + data)
        raw.settimeout(60)
        while raw.recv(65536):
            time.sleep(0.002)


def records(recorder: Recorder) -> list[RequestRecord]:
    found, has_more = recorder.requests(limit=REQUESTS)
    assert not has_more
    return found


def test_every_kind_of_life_was_there(recorder: Recorder) -> None:
    found = records(recorder)
    assert len(found) >= REQUESTS - 100  # one that leaves before its request is read has none
    states = collections.Counter(str(record.state) for record in found)
    errors = collections.Counter(record.error for record in found)
    left = collections.Counter(str(record.state_when_left) for record in found)
    choices = [choice for record in found for choice in record.choices]
    reasons = {str(wait.reason) for record in found for each in record.choices for wait in each.wait_intervals(1)}
    print(dict(states), dict(errors), dict(left), reasons)
    assert {"finished", "aborted", "failed"} <= set(states)
    assert {"queue_full", "invalid_value"} <= set(errors)
    assert {"seq_slots", "kv_blocks", "step_running"} <= reasons
    assert any(choice.preemptions for choice in choices)
    assert any(choice.cached_tokens for choice in choices)
    assert any(record.blocked_ns for record in found)
    assert any(len(record.choices) == 2 for record in found)


def test_every_life_tiles(recorder: Recorder) -> None:
    for record in records(recorder):
        check_tiles(record)
        for choice in record.choices:
            if record.state == "finished":
                check_prefill(choice)
                assert choice.completion_tokens > 0
        document = request_document(recorder, record, 0)
        assert document["received_ms"] > 0


def test_the_reports_of_all_blocks_add_up(recorder: Recorder) -> None:
    steps, has_more = recorder.steps(limit=100_000)
    assert not has_more
    assert all(sum((s.report.kv_live, s.report.kv_cached, s.report.kv_free)) == NUM_BLOCKS for s in steps)
    assert recorder.kv.states.count(2) == recorder.kv.states.count(3) == 0
    tokens = sum(choice.num_steps for record in records(recorder) for choice in record.choices)
    assert tokens == sum(len(step.shares) for step in steps)


def test_the_remainder_is_printed(recorder: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    first, whole, within = [], [], 0
    for record in records(recorder):
        stays = segments(record, 0)
        account = ttft(record, stays)
        if account is not None:
            first.append(account.unattributed_ns / 1e6)
            within += account.unattributed_ns <= max(1e6, 0.01 * account.total_ns)
        whole.append(end_to_end(record, stays, 0).unattributed_ns / 1e6)
    with capsys.disabled():
        for name, values in (("TTFT", first), ("end to end", whole)):
            cuts = statistics.quantiles(values, n=100)
            print(f"\nunattributed, {name}, ms: p50 {cuts[49]:.3f}, p90 {cuts[89]:.3f}, p99 {cuts[98]:.3f}", end="")
        print(f"\nwithin max(1 ms, 1%) of TTFT: {within} of {len(first)}")
    assert first
