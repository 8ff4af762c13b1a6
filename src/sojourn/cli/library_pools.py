"""Keeps the thread pools of libraries within the thread budget. Must run before they are first imported."""

from __future__ import annotations

import os

from sojourn import machine

COMPUTE_POOLS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def limit_library_pools(threads: int | None) -> None:
    """Sets the environment of this process and of the engine process it starts; what the user has set stays."""
    count = threads or machine.usable_threads()[0]
    for name in COMPUTE_POOLS:
        os.environ.setdefault(name, str(count))
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # the tokenizer encodes one text at a time, in our own threads
