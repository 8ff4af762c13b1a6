"""Typed wrappers of the matrix products, for tests and benches; the engine's steps do not pass through here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.native import _kernels


def isas() -> list[str]:
    """Instruction sets this build holds and this machine runs, the best one last."""
    return _kernels.isas()


@dataclass(frozen=True)
class QuantizedRows:
    """Activations as the integer kernels take them: x ~ scale * code in groups of 32; k is rounded up to 64."""

    codes: NDArray[np.int8]  # [rows, k]
    scales: NDArray[np.float32]  # [rows, k / 32]
    sums: NDArray[np.int32]  # [rows, k / 16] of 16 codes


def quantize_rows(isa: str, x: NDArray[np.float32]) -> QuantizedRows:
    """x [rows, k] -> int8 codes. A group with an infinity or NaN gets the scale NaN and codes of 0."""
    rows, columns = x.shape
    padded = -(-columns // 64) * 64
    result = QuantizedRows(
        np.empty((rows, padded), np.int8),
        np.empty((rows, padded // 32), np.float32),
        np.empty((rows, padded // 16), np.int32),
    )
    _kernels.quantize_rows(isa, np.ascontiguousarray(x), result.codes, result.scales, result.sums)
    return result


class PackedMatrix:
    """Weights [n, k] stored as `format` (row after row, whole blocks), repacked for the kernels."""

    def __init__(self, format: str, data: NDArray[np.uint8], n: int, k: int, *, threads: int = 1) -> None:
        """ValueError: an unknown format, or bytes that do not make n rows of k weights."""
        self._matrix = _kernels.pack(format, data.reshape(-1), n, k, threads)
        self.n, self.k = n, k
        self.panels = self._matrix.panels  # of 16 rows, an even number
        self.bytes = self._matrix.bytes  # read per pass over the matrix
        self.integer_activations = self._matrix.integer_activations  # else x is taken as float32

    def matmul(self, isa: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """x [rows, k] -> [rows, n], quantizing x first where the format asks for it. One thread."""
        return self.matmul_panels(isa, x, 0, self.panels)[:, : self.n]

    def matmul_panels(self, isa: str, x: NDArray[np.float32], begin: int, end: int) -> NDArray[np.float32]:
        """As `matmul` for panels [begin, end) only: [rows, 16 * panels], 0 elsewhere."""
        out = np.zeros((x.shape[0], 16 * self.panels), np.float32)
        self._matrix.matmul(isa, np.ascontiguousarray(x), begin, end, out)
        return out
