"""The extension module itself: what it refuses, and that other threads run while it works."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from sojourn import native
from sojourn.native import _kernels


def test_output_of_the_wrong_size_is_refused() -> None:
    data = np.zeros(18, np.uint8)
    with pytest.raises(ValueError, match="18 bytes do not make 31 weights"):
        _kernels.dequantize("Q4_0", data, np.empty(31, np.float32), 1)


def test_arrays_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(TypeError):
        _kernels.dequantize("F32", np.zeros(4, np.int32), np.empty(4, np.float32), 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _kernels.dequantize("F32", np.zeros(8, np.uint8)[::2], np.empty(1, np.float32), 1)
    with pytest.raises(TypeError):
        _kernels.dequantize("F32", np.zeros(4, np.uint8), np.empty(1, np.float64), 1)  # type: ignore[arg-type]


def test_read_only_input_is_accepted_and_read_only_output_refused() -> None:
    data = np.frombuffer(bytes([0, 0, 128, 63]), np.uint8)
    assert native.dequantize("F32", data).tolist() == [1.0]
    out = np.empty(1, np.float32)
    out.flags.writeable = False
    with pytest.raises(TypeError):
        _kernels.dequantize("F32", data, out, 1)


def test_nothing_in_nothing_out() -> None:
    for name in native.formats():
        assert native.dequantize(name, np.empty(0, np.uint8)).shape == (0,)


def test_other_python_threads_run_during_the_call() -> None:
    """While the lock is held nobody else can look at the clock; at the edges of the call somebody might, so only its
    middle counts."""
    name, blocks = "Q6_K", 150_000
    data = np.zeros(blocks * 210, np.uint8)
    out = np.empty(blocks * 256, np.float32)
    done = threading.Event()
    looks: list[float] = []

    def look_at_the_clock() -> None:
        while not done.wait(0.001):
            looks.append(time.perf_counter())

    other = threading.Thread(target=look_at_the_clock)
    other.start()
    seen = 0
    try:
        for _ in range(20):
            start = time.perf_counter()
            _kernels.dequantize(name, data, out, 1)
            quarter = (time.perf_counter() - start) / 4
            seen = sum(start + quarter < look < start + 3 * quarter for look in looks)
            if seen:
                break
    finally:
        done.set()
        other.join()
    assert seen
