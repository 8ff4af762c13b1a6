"""Drives an OpenAI-compatible server with a load and reports what its clients see. Starts no server."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from sojourn.bench.exchange import Endpoint, exchange
from sojourn.bench.outcome import Outcome, outcome
from sojourn.bench.prompts import word_prompts
from sojourn.bench.spread import Spread
from sojourn.errors import SojournError, StartupError

OnProgress = Callable[[int, int], None]  # requests ended, of how many
Api = Literal["completions", "chat"]
PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
LISTED_ERRORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of one run. The same load gives the same prompts on every server."""

    requests: int = 8
    concurrency: int | None = 1  # most requests at once; None: as many as arrive
    rate: float | None = None  # Poisson arrivals a second; None: the next one as soon as there is a free place
    prompt_words: int = 100
    prompt_spread: float = 0.5  # each prompt is this share shorter to longer
    prefix_words: int = 0  # words that all prompts begin with, beside prompt_words
    max_tokens: int = 64
    seed: int = 1

    def prompts(self) -> list[str]:
        endless = word_prompts(
            random.Random(self.seed), words=self.prompt_words, spread=self.prompt_spread, prefix_words=self.prefix_words
        )
        return list(itertools.islice(endless, self.requests))

    def delays(self) -> list[float]:
        """Seconds from the start of the run at which each request is due."""
        if self.rate is None:
            return [0.0] * self.requests
        generator = random.Random(self.seed + 1)  # a stream of its own: the rate does not change the prompts
        gaps = (generator.expovariate(self.rate) for _ in range(self.requests - 1))
        return list(itertools.accumulate(gaps, initial=0.0))


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients saw together. Latencies are of the requests that succeeded."""

    requests: int
    failed: int
    errors: list[str]  # the first few different ones
    wall_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tok_s: float
    total_tok_s: float
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    latency_ms: Spread


async def run_load(
    endpoint: Endpoint,
    model: str,
    load: Load,
    *,
    api: Api = "completions",
    limit_s: float = 600.0,
    on_progress: OnProgress | None = None,
) -> LoadReport:
    """Sends every request of the load; failures are counted in the report."""
    free = asyncio.Semaphore(load.concurrency or load.requests)
    requests = [
        endpoint.request("POST", PATHS[api], body(model, prompt, load.max_tokens, api)) for prompt in load.prompts()
    ]
    ended = 0
    started = time.perf_counter()

    async def one(request: bytes, delay: float) -> tuple[Any, float]:
        nonlocal ended
        await asyncio.sleep(started + delay - time.perf_counter())
        async with free:
            # With arrivals of their own, requests are due when they arrive; without, when there is a place for them.
            due = time.perf_counter() if load.rate is None else started + delay
            recording = await exchange(endpoint, request, limit_s)
        ended += 1
        if on_progress is not None:
            on_progress(ended, load.requests)
        return recording, due

    recordings = await asyncio.gather(*(one(*each) for each in zip(requests, load.delays(), strict=True)))
    wall = time.perf_counter() - started
    return summarize([outcome(recording, due) for recording, due in recordings], wall)


def body(model: str, prompt: str, max_tokens: int, api: Api) -> dict[str, Any]:
    """A greedy streaming request. Servers that know `ignore_eos` give exactly `max_tokens`."""
    text = {"prompt": prompt} if api == "completions" else {"messages": [{"role": "user", "content": prompt}]}
    return {
        "model": model,
        **text,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def summarize(outcomes: Sequence[Outcome], wall: float) -> LoadReport:
    good = [each for each in outcomes if each.error is None]
    errors = dict.fromkeys(each.error for each in outcomes if each.error is not None)
    prompt_tokens = sum(each.prompt_tokens for each in good)
    output_tokens = sum(each.output_tokens for each in good)

    def spread(values: Iterable[float | None]) -> Spread:
        return Spread.of([value for value in values if value is not None], 1e3)

    return LoadReport(
        requests=len(outcomes),
        failed=len(outcomes) - len(good),
        errors=list(errors)[:LISTED_ERRORS],
        wall_s=wall,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(each.cached_tokens for each in good),
        output_tokens=output_tokens,
        output_tok_s=output_tokens / wall,
        total_tok_s=(prompt_tokens + output_tokens) / wall,
        ttft_ms=spread(each.ttft for each in good),
        tpot_ms=spread(each.tpot for each in good),
        itl_ms=spread(gap for each in good for gap in each.gaps),
        latency_ms=spread(each.latency for each in good),
    )


async def first_model(endpoint: Endpoint, limit_s: float = 30.0) -> str:
    """The name of the model that the server lists first. Raises StartupError."""
    recording = await exchange(endpoint, endpoint.request("GET", "/v1/models"), limit_s)
    where = f"http://{endpoint.host}:{endpoint.port}"
    if recording.error is not None:
        raise StartupError(f"No server answers at {where}: {recording.error}.")
    try:
        answer = msgspec.json.decode(recording.body)
        if recording.status != 200:
            raise SojournError(f"{where}: {recording.status}: {answer['error']['message']}")
        return str(answer["data"][0]["id"])
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise StartupError(f"What answers at {where} is no OpenAI-compatible server.") from error
