"""CPU time that the front end, process A, takes for each streamed token, and where the engine process stands beside it.

    python benchmarks/frontend_cpu.py        # or: make measure-frontend

The engine is the scripted one: it sleeps for as long as a real step of SmolLM2 would take and computes nothing, so that
the model disturbs neither the figures nor their spread. All else is the product: HTTP, sockets, two processes, the
model's own tokenizer. CPU time is what the kernel accounted to the threads, so a busy machine hardly changes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import engines
from sojourn.bench.http_load import Load, LoadReport, run_load
from sojourn.bench.spread import median
from sojourn.cli.options import Settings
from sojourn.cli.serve import serve_command
from sojourn.config import CacheConfig, EngineConfig, FrontendConfig, ServerConfig

MODEL = "smollm2:135m"
STREAMS = (1, 4, 16)
# Near SmolLM2 on two cores: 4 ms for a step of one token, 15 ms for one of sixteen.
SCRIPT = {"vocab_size": 49_152, "seconds_per_step": 0.0033, "seconds_per_token": 0.0007}
TOKENS = 384  # of each stream: so many that the request itself hardly counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--script", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve, args.script)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json") as script:
        json.dump(SCRIPT, script)
        script.flush()
        command = [sys.executable, __file__, "--script", script.name, "--serve"]
        with engines.serving(command, MODEL) as running:
            measure(running, args.repeats)


def serve(port: int, script: str) -> None:
    """What the child does: `sojourn serve` with an engine that no flag offers."""
    engine = EngineConfig(model=MODEL, backend="scripted", script=script, cache=CacheConfig(num_kv_blocks=1024))
    server = ServerConfig(port=port, log_level="warning")
    serve_command(Settings(server=server, frontend=FrontendConfig(), engine=engine))


def measure(running: engines.Running, repeats: int) -> None:
    asyncio.run(load(running, 1, seed=0))  # imports, caches and the first allocations
    print("streams   µs per token in A   in B   tok/s   (medians)")
    for streams in STREAMS:
        rows = [one_run(running, streams, seed=1 + repeat) for repeat in range(repeats)]
        front, engine, rate = (median([row[column] for row in rows]) for column in range(3))
        print(f"{streams:7} {front:19.1f} {engine:6.1f} {rate:7.0f}", flush=True)


def one_run(running: engines.Running, streams: int, seed: int) -> tuple[float, float, float]:
    """Microseconds per token of both processes, and tokens a second."""
    before = [engines.cpu_seconds(pid) for pid in running.processes()]
    report = asyncio.run(load(running, streams, seed))
    if report.failed:
        sys.exit(f"a request failed: {report.errors[0]}")
    front, engine = (
        (engines.cpu_seconds(pid) - start) / report.output_tokens * 1e6
        for pid, start in zip(running.processes(), before, strict=True)
    )
    return front, engine, report.output_tok_s


async def load(running: engines.Running, streams: int, seed: int) -> LoadReport:
    load = Load(requests=streams, concurrency=streams, prompt_words=8, max_tokens=TOKENS, seed=seed)
    return await run_load(running.endpoint, running.model, load)


if __name__ == "__main__":
    main()
