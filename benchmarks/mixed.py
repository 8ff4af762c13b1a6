"""One stream that decodes while long prompts arrive back to back: what each costs the other."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from sojourn.bench.exchange import Endpoint, Recording, exchange
from sojourn.bench.http_load import Load, body, run_load
from sojourn.bench.outcome import outcome
from sojourn.bench.spread import median, percentile

LIMIT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Milliseconds between the running stream's tokens, and prompt tokens computed in a second."""

    alone_ms: float  # median, without prompts
    gap_p99_ms: float  # with prompts
    gap_max_ms: float
    unmixed_tok_s: float  # without the stream
    mixed_tok_s: float


async def measure_mixed(endpoint: Endpoint, model: str, prompts: Load, *, alone_tokens: int, stream: str) -> Mixed:
    """`prompts` is the load of long prompts; `stream` is the running stream's short one."""
    request = endpoint.request("POST", "/v1/completions", body(model, stream, alone_tokens, "completions"))
    alone = outcome(await exchange(endpoint, request, LIMIT_S), due=time.perf_counter())
    if alone.error is not None:
        raise SystemExit(f"the stream failed: {alone.error}")
    unmixed = await run_load(endpoint, model, prompts, limit_s=LIMIT_S)
    # Other prompts of the same lengths, so that none is found in the prefix cache.
    others = replace(prompts, seed=prompts.seed + 1000)
    gaps, mixed = await _with_stream(endpoint, model, others, stream)
    for report in (unmixed, mixed):
        if report.failed:
            raise SystemExit(f"a prompt failed: {report.errors[0]}")
    return Mixed(
        alone_ms=1e3 * median(alone.gaps),
        gap_p99_ms=1e3 * percentile(gaps, 99),
        gap_max_ms=1e3 * max(gaps),
        unmixed_tok_s=unmixed.prompt_tokens / unmixed.wall_s,
        mixed_tok_s=mixed.prompt_tokens / mixed.wall_s,
    )


async def _with_stream(endpoint: Endpoint, model: str, prompts: Load, stream: str):
    """Gaps of the stream while the prompts were computed, and the prompts' report."""
    recording = Recording()
    endless = body(model, stream, 1_000_000, "completions")  # clamped to the context
    running = asyncio.create_task(
        exchange(endpoint, endpoint.request("POST", "/v1/completions", endless), LIMIT_S, recording=recording)
    )
    while len(recording.packets) < 2:  # of its tokens, since the head of the answer is parsed at once
        if running.done():
            raise SystemExit(f"the running stream ended at once: {recording.error or recording.body!r}")
        await asyncio.sleep(0.005)
    start = time.perf_counter()
    report = await run_load(endpoint, model, prompts, limit_s=LIMIT_S)
    end = time.perf_counter()
    if running.done():
        raise SystemExit("the running stream reached its end before the prompts did: give fewer or shorter prompts")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    times = [at for at, _ in recording.events]
    # The gap that the first prompt falls into and the one that the last leaves open count too.
    inside = [(a, b) for a, b in zip(times, [*times[1:], end], strict=True) if b > start and a < end]
    return [b - a for a, b in inside], report
