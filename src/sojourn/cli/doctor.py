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
from sojourn.weights.checkpoint import open_checkpoint
from sojourn.weights.fetch import cached

MEASURED_BYTES = 256 * 2**20  # larger than any last-level cache we expect
ROUNDS = 4


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
        Finding("threads", "ok", f"{threads} ({reason})"),
        _memory(),
        Finding("read bandwidth", "ok", f"{read_bandwidth(threads) / 1e9:.1f} GB/s with {threads} threads"),
        _model(model),
        _port(host, port),
    ]
    print(columns([(finding.verdict, finding.name, finding.text) for finding in findings]))
    if any(finding.verdict == "FAIL" for finding in findings):
        raise typer.Exit(1)


def read_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads read together, best of a few rounds: the bound of decoding speed."""
    parts = np.array_split(np.ones(MEASURED_BYTES // 8, np.int64), threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:  # NumPy reduces without the GIL
        for _ in range(ROUNDS):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, time.perf_counter() - start)
    return MEASURED_BYTES / best


def _cpu() -> Finding:
    features = machine.cpu_features()
    return Finding(
        "CPU", "ok" if features else "note", f"{machine.cpu_name()}; {' '.join(features) or 'no SIMD we use'}"
    )


def _memory() -> Finding:
    free, total = machine.memory_limit_bytes(), machine.memory_total_bytes()
    verdict: Literal["ok", "note"] = "ok" if free > 2**30 else "note"
    return Finding("memory", verdict, f"{free / 2**30:.1f} GiB free of {total / 2**30:.1f} GiB")


def _model(name: str) -> Finding:
    try:
        path = cached(name)
        if path is None:
            return Finding("model", "note", f"{name} is not in the cache; `sojourn pull {name}` fetches it")
        checkpoint = open_checkpoint(path)
    except StartupError as error:
        return Finding("model", "FAIL", error.message)
    kind = f"{checkpoint.config.get('model_type')} {checkpoint.quantization}"
    return Finding("model", "ok", f"{name}: {kind}, {checkpoint.weight_bytes / 1e6:.0f} MB, {path}")


def _port(host: str, port: int) -> Finding:
    try:
        listener.bind(host, port).close()
    except StartupError as error:
        return Finding("port", "FAIL", error.message)
    return Finding("port", "ok", f"{host}:{port} is free")
