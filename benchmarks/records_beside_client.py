"""What a client measures beside what the server has on record for the same requests: TTFT and ITL at 1 and 16 streams.

    make measure-records

The client's clock starts before it connects and stops when it has read an event; the record's runs from the accepted
connection to the write. So the differences are the network, the wake-up of the reader, and what the records miss.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import engines
from sojourn.bench.exchange import Endpoint, Recording, exchange
from sojourn.bench.http_load import Load, body
from sojourn.bench.outcome import outcome
from sojourn.bench.spread import percentile
from sojourn.bench.tables import table

MODEL = "smollm2:135m"
STREAMS = (1, 16)
REQUESTS_EACH = 4
TOKENS = 96
LIMIT_S = 300.0


def main() -> None:
    with engines.sojourn(MODEL, []) as running:
        asyncio.run(measure(running.endpoint, running.model))


async def measure(endpoint: Endpoint, model: str) -> None:
    await lives(endpoint, model, Load(requests=2, prompt_words=8, max_tokens=4, seed=999), at_once=1)
    rows = [("streams", "what", "client ms", "difference p50", "p90", "p99", "max")]
    for streams in STREAMS:
        load = Load(requests=REQUESTS_EACH * streams, prompt_words=40, max_tokens=TOKENS, seed=streams)
        ttft: list[tuple[float, float]] = []
        itl: list[tuple[float, float]] = []
        for recording in await lives(endpoint, model, load, at_once=streams):
            seen = outcome(recording, due=recording.sent)
            if seen.error is not None:
                raise SystemExit(f"a request failed: {seen.error}")
            record = await record_of(endpoint, recording)
            ttft.append((1e3 * seen.ttft, record["ttft"]["total_ms"]))
            if len(seen.gaps) == len(record["itl_ms"]):  # an event with two tokens hides one of the gaps
                itl += zip((1e3 * gap for gap in seen.gaps), record["itl_ms"], strict=True)
        rows += [cells(streams, "TTFT", ttft), cells(streams, "ITL", itl)]
    print(table(rows))


async def lives(endpoint: Endpoint, model: str, load: Load, at_once: int) -> list[Recording]:
    free = asyncio.Semaphore(at_once)

    async def one(prompt: str) -> Recording:
        async with free:
            request = endpoint.request("POST", "/v1/completions", body(model, prompt, load.max_tokens, "completions"))
            return await exchange(endpoint, request, LIMIT_S)

    return await asyncio.gather(*map(one, load.prompts()))


async def record_of(endpoint: Endpoint, recording: Recording) -> dict:
    """Waits for the end of the life: the client may know of it first."""
    request_id = msgspec.json.decode(recording.events[0][1])["id"]
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        answer = await exchange(endpoint, endpoint.request("GET", f"/v1/requests/{request_id}"), LIMIT_S)
        record = msgspec.json.decode(answer.body)
        if record.get("state") == "finished":
            return record
        await asyncio.sleep(0.02)
    raise SystemExit(f"{request_id} has no finished record")


def cells(streams: int, what: str, pairs: list[tuple[float, float]]) -> tuple[str, ...]:
    clients = percentile([client for client, _ in pairs], 50)
    apart = [abs(client - ours) for client, ours in pairs]
    spread = [percentile(apart, share) for share in (50, 90, 99)]
    return (str(streams), what, f"{clients:.2f}", *(f"{value:.2f}" for value in spread), f"{max(apart):.2f}")


if __name__ == "__main__":
    main()
