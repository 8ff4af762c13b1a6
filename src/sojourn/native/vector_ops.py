"""The vector kernels one at a time, on NumPy arrays and a named instruction set: for tests and benchmarks.

The executor never comes here: it reaches the kernels without Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.native import _kernels

Array = NDArray[np.float32]
Bytes = NDArray[np.uint8]

NO_CENTER = np.empty(0, np.float32)


def rms_norm(isa: str, x: Array, weight: Array, *, eps: float = 1e-6, offset: float = 0.0) -> Array:
    """x [rows, width] over each group of len(weight) columns, times weight + offset."""
    out = np.empty_like(x)
    _kernels.rms_norm(isa, x, weight, eps, offset, out)
    return out


def rope(isa: str, x: Array, head_dim: int, cos: Array, sin: Array) -> Array:
    """x [rows, heads * head_dim] turned by cos, sin [rows, head_dim / 2]; columns i and i + head_dim / 2 are a pair."""
    out = x.copy()
    _kernels.rope(isa, out, head_dim, cos, sin)
    return out


def glu(
    isa: str,
    gate: Array,
    up: Array,
    activation: Literal["silu", "gelu_tanh"],
    columns: tuple[int, int] | None = None,
) -> Array:
    """activation(gate) * up, [rows, width], over the columns [begin, end); the others are 0."""
    out = np.zeros_like(gate)
    begin, end = columns if columns is not None else (0, gate.shape[1])
    _kernels.glu(isa, gate, up, begin, end, activation, out)
    return out


def add(isa: str, a: Array, b: Array) -> Array:
    out = a.copy()
    _kernels.add(isa, out, b)
    return out


def scale(isa: str, a: Array, factor: float) -> Array:
    out = a.copy()
    _kernels.scale(isa, out, factor)
    return out


def softcap(isa: str, a: Array, cap: float) -> Array:
    """cap * tanh(a / cap)."""
    out = a.copy()
    _kernels.softcap(isa, out, cap)
    return out


def merge(isa: str, partials: Array) -> Array:
    """partials [chunks, head_dim + 2] of one query: maximum, sum, unnormalised output. Returns [head_dim]."""
    out = np.empty(partials.shape[1] - 2, np.float32)
    _kernels.merge(isa, partials, out)
    return out


@dataclass(frozen=True, slots=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int  # a multiple of 16
    block_size: int = 32  # tokens in a KV block, a multiple of 16
    scale: float = 1.0
    window: int = 0  # 0: none; else a token sees itself and window - 1 before it
    softcap: float = 0.0  # 0: none
    kv_type: Literal["f16", "f32", "int8"] = "f16"

    @property
    def block_bytes(self) -> int:
        """Bytes of K, and as many of V, in a block."""
        return _kernels.kv_block_bytes(self.num_kv_heads, self.head_dim, self.block_size, self.kv_type)


class PagedKV:
    """K and V of one layer, which start as whatever byte `fill` makes of them, so that reading too far is seen.

    `key_center` [kv_heads * head_dim] is what int8 keys are coded relative to.
    """

    def __init__(
        self, isa: str, shape: AttentionShape, num_blocks: int, *, fill: int = 0xFF, key_center: Array | None = None
    ) -> None:
        self.shape = shape
        self.keys: Bytes = np.full(num_blocks * shape.block_bytes, fill, np.uint8)
        self.values: Bytes = np.full(num_blocks * shape.block_bytes, fill, np.uint8)
        self._kernels = _kernels.PagedKV(
            isa,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.block_size,
            shape.scale,
            shape.window,
            shape.softcap,
            shape.kv_type,
            self.keys,
            self.values,
            NO_CENTER if key_center is None else key_center,
        )

    def write(self, block_table: NDArray[np.int32], first: int, k: Array, v: Array) -> None:
        """k, v [tokens, kv_heads * head_dim] of the positions `first` onward."""
        self._kernels.write(block_table, first, k, v)

    def attend(
        self, block_table: NDArray[np.int32], positions: NDArray[np.int64], q: Array, *, tile: int = 24
    ) -> Array:
        """Single-threaded attention of q [rows, heads * head_dim], row r being the sequence's token at positions[r].

        `tile` query vectors (1 to 24) go into one work item, whose bits must not depend on it. Same shape as q.
        """
        out = np.empty_like(q)
        self._kernels.attend(block_table, positions, q, tile, out)
        return out
