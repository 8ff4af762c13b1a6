"""Rows of K and V as 8-bit codes, each row of one token and head with its own scale. Pure functions, no state.

The native twin is native/src/isa/kv_codes_impl.h: the same codes and scales, bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

LARGEST_CODE = np.float32(127)
SMALLEST_ROW = np.float32(2.0**-112)  # the reciprocal of a smaller row's scale would not be finite


def hadamard(rows: Array) -> Array:
    """Rows [..., head_dim] times an orthogonal Hadamard matrix, which is its own inverse.

    Its order is the largest power of two that divides head_dim, and it repeats along the diagonal. It spreads what is
    large in a few dimensions over all, so that one scale suits them.
    """
    head_dim = rows.shape[-1]
    order = head_dim & -head_dim
    turned, half = rows, 1
    while half < order:
        pairs = turned.reshape(*rows.shape[:-1], -1, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        turned = np.stack([a + b, a - b], axis=-2).reshape(rows.shape)
        half *= 2
    normed: Array = turned * (np.float32(1) / np.sqrt(np.float32(order)))
    return normed


def encode(rows: Array) -> tuple[NDArray[np.int8], Array]:
    """Rows [..., head_dim] -> codes of that shape, to nearest even, and the scales [...] that they are multiples of.

    A row with an infinity or a NaN can't be coded: its scale is NaN, and so is every result that depends on it.
    """
    largest = np.abs(rows).max(axis=-1)
    finite = np.isfinite(rows).all(axis=-1)
    usable = finite & (largest >= SMALLEST_ROW)
    safe = np.where(usable, largest, np.float32(1))
    scales = np.where(usable, safe / LARGEST_CODE, np.where(finite, np.float32(0), np.float32(np.nan)))
    factors = np.where(usable, LARGEST_CODE / safe, np.float32(0))
    scaled = np.where(usable[..., None], rows, np.float32(0)) * factors[..., None]
    return np.rint(scaled).astype(np.int8), scales


def decode(codes: NDArray[np.int8], scales: Array) -> Array:
    return codes.astype(np.float32) * scales[..., None]
