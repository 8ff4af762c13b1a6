"""CPU time that the front end, process A, takes for each streamed token, and the engine process beside it.

    make measure-frontend

The engine is the scripted one: it sleeps for about as long as a step of SmolLM2 takes and computes nothing, so the
model does not disturb the figures. All else is the product: HTTP, sockets, two processes, the model's own tokenizer.
Of the repeats the least counts: whatever else runs can only add, by emptying caches and by sharing cores.
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
    parser.add_argument("--repeats", type=int, default=5)
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
    print("streams   µs per token in A   in B")
    for streams in STREAMS:
        rows = [one_run(running, streams, seed=1 + repeat) for repeat in range(repeats)]
        print(
            f"{streams:7} {min(front for front, _ in rows):19.1f} {min(engine for _, engine in rows):6.1f}", flush=True
        )


def one_run(running: engines.Running, streams: int, seed: int) -> tuple[float, float]:
    """Microseconds per token of both processes."""
    before = [engines.cpu_seconds(pid) for pid in running.processes()]
    report = asyncio.run(load(running, streams, seed))
    if report.failed:
        sys.exit(f"a request failed: {report.errors[0]}")
    front, engine = (
        (engines.cpu_seconds(pid) - start) / report.output_tokens * 1e6
        for pid, start in zip(running.processes(), before, strict=True)
    )
    return front, engine


async def load(running: engines.Running, streams: int, seed: int) -> LoadReport:
    load = Load(requests=streams, concurrency=streams, prompt_words=8, max_tokens=TOKENS, seed=seed)
    return await run_load(running.endpoint, running.model, load)


if __name__ == "__main__":
    main()
