"""Typed wrappers of the C++ kernels. Owns nothing, computes nothing; importing it loads the extension module."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.native import _kernels


def formats() -> dict[str, tuple[int, int]]:
    """Storage formats the kernels decode: name -> (weights per block, bytes per block)."""
    return _kernels.formats()


def dequantize(format: str, data: NDArray[np.uint8], *, threads: int = 1) -> NDArray[np.float32]:
    """The weights stored in `data` (contiguous bytes, whole blocks of `format`) as float32, in one dimension.

    Runs without the GIL; the result does not depend on `threads`.
    ValueError: an unknown format, or bytes that are not a whole number of blocks.
    """
    flat = data.reshape(-1)
    block_elements, block_bytes = _kernels.formats().get(format, (1, 1))
    out = np.empty(flat.size // block_bytes * block_elements, dtype=np.float32)
    _kernels.dequantize(format, flat, out, threads)
    return out
