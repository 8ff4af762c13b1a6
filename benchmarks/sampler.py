"""What sampling costs: processor time per row of logits, the native sampler and its NumPy twin side by side.

    .venv/bin/python benchmarks/sampler.py [--rows 16] [--threads 1] [--repeats 15]

Rows are peaked like a language model's: a few dozen likely tokens over a normal background. Each figure is the least of
the repeats, since a busy machine only ever adds. Processor time counts all threads; with --threads 2 and more the last
column shows what is left of it on the clock.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sojourn.bench.tables import table
from sojourn.cli.library_pools import limit_library_pools

limit_library_pools()  # before NumPy is imported

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from sojourn.executor.native_sampler import NativeSampler  # noqa: E402
from sojourn.executor.runner import TokenSampler  # noqa: E402
from sojourn.executor.sampler import Sampler  # noqa: E402
from sojourn.native import ThreadPool, isas  # noqa: E402
from sojourn.records import Admission, SamplingParams  # noqa: E402

VOCABULARIES = (49_152, 151_936)
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature 0.8, top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "temperature 1": {},
    "top_k 50": {"top_k": 50},
    "min_p 0.05": {"min_p": 0.05},
    "top_p 0.95, penalties": {"top_p": 0.95, "repetition_penalty": 1.1, "frequency_penalty": 0.5},
    "temperature 1.5, top_p 0.99": {"temperature": 1.5, "top_p": 0.99},
    "temperature 0, logprobs 5": {"temperature": 0.0, "logprobs": 5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    pool, isa = ThreadPool(args.threads), isas()[0]
    lines: list[tuple[str, ...]] = [("vocabulary", "request", "NumPy us/row", f"{isa} us/row", "on the clock")]
    for vocab in VOCABULARIES:
        logits = peaked(args.rows, vocab)
        for name, params in SETTINGS.items():
            slow, _ = least(Sampler(vocab, args.rows), params, logits, 3)
            fast, clock = least(NativeSampler(vocab, args.rows, isa=isa, pool=pool), params, logits, args.repeats)
            lines.append((f"{vocab:,}", name, f"{slow:.0f}", f"{fast:.1f}", f"{clock:.1f}"))
    print(table(lines))


def peaked(rows: int, vocab: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (rows, vocab))
    for row in logits:
        row[rng.choice(vocab, 40, replace=False)] += np.linspace(14, 6, 40)
    return logits.astype(np.float32)


def least(
    sampler: TokenSampler, params: dict[str, Any], logits: NDArray[np.float32], repeats: int
) -> tuple[float, float]:
    """Microseconds a row, of processor time and on the clock."""
    rows = len(logits)
    for slot in range(rows):
        sampling = SamplingParams(**params)
        sampler.admit(
            Admission(slot=slot, params=sampling, seed=slot, eos_token_ids=(0,), prompt_ids=[1, 2, 3], output_ids=[])
        )
    slots, busy, clock = np.arange(rows, dtype=np.int32), [], []
    for repeat in range(repeats):
        work = logits.copy()
        processor, wall = time.process_time(), time.perf_counter()
        sampler.sample(work, slots, np.full(rows, repeat, np.int32))
        busy.append(time.process_time() - processor)
        clock.append(time.perf_counter() - wall)
    return min(busy) / rows * 1e6, min(clock) / rows * 1e6


if __name__ == "__main__":
    main()
