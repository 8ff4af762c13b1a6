"""Prefill and decode speed of an engine in this process, beside what the memory could give at most.

    python benchmarks/decode.py [--model smollm2:135m] [--prompt-tokens 256] [--output-tokens 64] [--batch 1 4 16]

Prompts are random token ids from a seeded generator; end-of-text is ignored, so lengths are fixed. Every decode step
reads all weights once, whatever the batch: "weights GB/s" is steps per second times the bytes of the weights as this
backend holds them, and the line of the machine says what a plain read of memory reaches.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import time
from pathlib import Path

from sojourn import machine
from sojourn.cli.library_pools import limit_library_pools

SEED = 1
FLOAT32_BYTES = 4  # the reference backend holds dequantized weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    limit_library_pools()
    # Imported here because the BLAS reads its thread count when NumPy is first imported.
    from sojourn.cli.doctor import read_bandwidth
    from sojourn.config import CacheConfig, EngineConfig
    from sojourn.core.build import build_engine
    from sojourn.weights.fetch import resolve

    threads, reason = (args.threads, "--threads") if args.threads else machine.usable_threads()
    engine = build_engine(
        EngineConfig(
            model=str(resolve(args.model)),
            threads=args.threads,
            cache=CacheConfig(enable_prefix_caching=False),
        )
    )
    weight_bytes = engine.info.num_parameters * FLOAT32_BYTES
    print(f"model    {args.model}, {engine.info.quantization}, backend {engine.info.backend}")
    print(
        f"machine  {machine.cpu_name()}, {threads} threads ({reason}), reads {read_bandwidth(threads) / 1e9:.1f} GB/s"
    )
    print(f"commit   {commit()}, seed {SEED}, {args.prompt_tokens} prompt and {args.output_tokens} output tokens")
    print(f"{'batch':>5} {'prefill tok/s':>14} {'decode tok/s':>13} {'steps/s':>8} {'weights GB/s':>13}")
    for batch in args.batch:
        prefill_s, decode_s, steps = measure(engine, batch, args.prompt_tokens, args.output_tokens)
        rate = steps / decode_s
        prefill, decode = batch * args.prompt_tokens / prefill_s, batch * (args.output_tokens - 1) / decode_s
        print(f"{batch:5} {prefill:14.1f} {decode:13.1f} {rate:8.1f} {rate * weight_bytes / 1e9:13.1f}")


def measure(engine, batch: int, prompt_tokens: int, output_tokens: int) -> tuple[float, float, int]:
    """Seconds until every request has its first token, seconds from there to the end, steps of the second part."""
    from sojourn.records import EngineRequest, SamplingParams

    generator = random.Random(SEED)
    params = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
    for index in range(batch):
        ids = [generator.randrange(engine.info.vocab_size) for _ in range(prompt_tokens)]
        engine.add_request(EngineRequest(request_id=f"{batch}-{index}", prompt_ids=ids, params=params))
    begun: set[str] = set()
    start = time.perf_counter()
    while len(begun) < batch:
        begun |= {delta.request_id for delta in engine.step() if delta.token_ids}
    middle = time.perf_counter()
    steps = 0
    while engine.has_unfinished():
        engine.step()
        steps += 1
    return middle - start, time.perf_counter() - middle, steps


def commit() -> str:
    here = Path(__file__).resolve().parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=here,
        check=False,
        capture_output=True,
        text=True,
        env=os.environ,
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
