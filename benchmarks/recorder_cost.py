"""What keeping records costs: CPU time of a token with and without, and memory over many requests.

    python benchmarks/recorder_cost.py            # CPU time; two servers that take turns
    python benchmarks/recorder_cost.py --memory   # 20,000 requests, and what the server holds meanwhile

The difference is taken with the scripted engine, which computes nothing, so that it isn't lost in the model's own
spread; then it is set against the CPU time that a token of the default model takes altogether.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import engines
from benchmarks.frontend_cpu import MODEL, SCRIPT
from sojourn.bench.http_load import Load, LoadReport, run_load
from sojourn.bench.spread import median

STREAMS = 16
TOKENS = 384
MEMORY_REQUESTS = 20_000
MEMORY_ROUND = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=8, help="Runs of each kind.")
    parser.add_argument("--memory", action="store_true")
    args = parser.parse_args()
    if args.memory:
        with scripted(records=True, quick=True) as running:
            memory(running)
    else:
        cost(args.repeats)


def cost(repeats: int) -> None:
    with scripted(records=True) as on, scripted(records=False) as off:
        for running in (on, off):
            asyncio.run(load(running, STREAMS, STREAMS, TOKENS, seed=0))
        pairs = []
        for repeat in range(repeats):  # which one goes first changes, since the first finds colder caches
            order = (on, off) if repeat % 2 else (off, on)
            spent = {id(running): per_token(running, seed=1 + repeat) for running in order}
            pairs.append((spent[id(on)], spent[id(off)]))
            print(f"with {pairs[-1][0]:7.1f}   without {pairs[-1][1]:7.1f} µs per token", flush=True)
    difference = median([with_ - without for with_, without in pairs])
    with engines.sojourn(MODEL) as running:
        asyncio.run(load(running, STREAMS, STREAMS, 64, seed=0))
        whole = median([per_token(running, seed=1 + repeat) for repeat in range(3)])
    print(
        f"records: {difference:.1f} µs of {whole:.0f} µs that a token of {MODEL} takes at {STREAMS} streams,", end=" "
    )
    print(f"{difference / whole:.2%}")


def memory(running: engines.Running) -> None:
    print("requests   MiB held by both processes")
    for done in range(0, MEMORY_REQUESTS + 1, MEMORY_ROUND):
        if done:
            asyncio.run(load(running, MEMORY_ROUND, STREAMS, 16, seed=done))
        print(f"{done:8} {running.memory() / 2**20:13.1f}", flush=True)


@contextlib.contextmanager
def scripted(*, records: bool, quick: bool = False) -> Iterator[engines.Running]:
    """frontend_cpu's server; SOJOURN_RECORDS reaches both of its processes."""
    script = {**SCRIPT, "seconds_per_step": 0.0, "seconds_per_token": 0.0} if quick else SCRIPT
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(script, file)
        file.flush()
        program = Path(__file__).with_name("frontend_cpu.py")
        os.environ["SOJOURN_RECORDS"] = str(int(records))
        with engines.serving([sys.executable, str(program), "--script", file.name, "--serve"], MODEL) as running:
            del os.environ["SOJOURN_RECORDS"]
            yield running


def per_token(running: engines.Running, seed: int) -> float:
    """Microseconds of CPU time, both processes."""
    before = {pid: engines.cpu_seconds(pid) for pid in running.processes()}
    report = asyncio.run(load(running, STREAMS, STREAMS, TOKENS, seed))
    spent = sum(engines.cpu_seconds(pid) - start for pid, start in before.items())
    return 1e6 * spent / report.output_tokens


async def load(running: engines.Running, requests: int, streams: int, tokens: int, seed: int) -> LoadReport:
    load = Load(requests=requests, concurrency=streams, prompt_words=8, max_tokens=tokens, seed=seed)
    report = await run_load(running.endpoint, running.model, load)
    if report.failed:
        sys.exit(f"a request failed: {report.errors[0]}")
    return report


if __name__ == "__main__":
    main()
