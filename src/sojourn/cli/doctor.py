"""Checks what a model would run on, one row per question. Changes nothing and downloads nothing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import typer

from sojourn import machine
from sojourn.cli import listener
from sojourn.cli.columns import columns
from sojourn.errors import StartupError
from sojourn.executor.model import Model
from sojourn.executor.native_backend import choose_isa
from sojourn.weights.fetch import cached

MEASURED_BYTES = 256 * 2**20  # larger than any last-level cache we expect
ROUNDS = 8
NOISY_PERCENT = 25  # a spread above this: something else uses the memory too


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    verdict: Literal["ok", "note", "FAIL"]
    text: str


def doctor_command(model: str, *, host: str, port: int) -> None:
    """Prints the table. Exit code 1 when a check failed."""
    threads, reason = machine.usable_threads()
    findings = [
        _cpu(),
        _kernels(),
        Finding("threads", "ok", f"{threads} ({reason})"),
        _memory(),
        _bandwidth(threads),
        *_model(model),
        _port(host, port),
    ]
    print(columns([(finding.verdict, finding.name, finding.text) for finding in findings]))
    if any(finding.verdict == "FAIL" for finding in findings):
        raise typer.Exit(1)


def read_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads read together, best of a few rounds: the bound of decoding speed."""
    return MEASURED_BYTES / min(read_seconds(threads))


def read_seconds(threads: int) -> list[float]:
    """Seconds that each round took."""
    parts = np.array_split(np.ones(MEASURED_BYTES // 8, np.int64), threads)
    seconds = []
    with ThreadPoolExecutor(threads) as pool:  # NumPy reduces without the GIL
        for _ in range(ROUNDS):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))
            seconds.append(time.perf_counter() - start)
    return seconds


def _cpu() -> Finding:
    features = machine.cpu_features()
    return Finding(
        "CPU", "ok" if features else "note", f"{machine.cpu_name()}; {' '.join(features) or 'no SIMD we use'}"
    )


def _kernels() -> Finding:
    try:
        isa, why = choose_isa()
    except StartupError as error:
        return Finding("kernels", "FAIL", error.message)
    return Finding("kernels", "note" if isa == "portable" else "ok", f"{isa}: {why}")


def _bandwidth(threads: int) -> Finding:
    seconds = read_seconds(threads)
    best, slowest = (MEASURED_BYTES / bound / 1e9 for bound in (min(seconds), max(seconds)))
    spread = 100 * (best - slowest) / best
    text = f"{best:.1f} GB/s with {threads} threads, best of {len(seconds)}; the slowest was {spread:.0f}% below"
    return Finding("read bandwidth", "ok" if spread < NOISY_PERCENT else "note", text)


def _memory() -> Finding:
    free, total = machine.memory_limit_bytes(), machine.memory_total_bytes()
    verdict: Literal["ok", "note"] = "ok" if free > 2**30 else "note"
    return Finding("memory", verdict, f"{free / 2**30:.1f} GiB free of {total / 2**30:.1f} GiB")


def _model(name: str) -> list[Finding]:
    try:
        path = cached(name)
        if path is None:
            return [Finding("model", "note", f"{name} is not in the cache; `sojourn pull {name}` fetches it")]
        model = Model.from_pretrained(str(path))
    except StartupError as error:
        return [Finding("model", "FAIL", error.message)]
    checkpoint = model.checkpoint
    kind = f"{checkpoint.config.get('model_type')} {checkpoint.quantization}"
    context = model.config.max_position_embeddings
    per_token = [f"{model.kv_bytes_per_token(kv_dtype) / 1000:.1f} KB in {kv_dtype}" for kv_dtype in ("f16", "int8")]
    return [
        Finding("model", "ok", f"{name}: {kind}, {checkpoint.weight_bytes / 1e6:.0f} MB, {path}"),
        Finding("KV cache", "ok", f"a token takes {' or '.join(per_token)}; the model's context is {context} tokens"),
    ]


def _port(host: str, port: int) -> Finding:
    try:
        listener.bind(host, port).close()
    except StartupError as error:
        return Finding("port", "FAIL", error.message)
    return Finding("port", "ok", f"{host}:{port} is free")
