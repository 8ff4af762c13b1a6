"""The exponential function that sampling uses, made of float32 additions and multiplications only.

NumPy's own depends on the processor and its version; this one gives the same bits everywhere, so the native sampler
(its twin is in native/src/isa/sampling_impl.h) agrees with the Python one, and a seed gives the same tokens on every
machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # exact in 9 bits, so n * _LN2_HIGH has no rounding error for |n| < 2**15
_LN2_LOW = np.float32(-2.12194440e-4)
_LOWEST = np.float32(-87.0)  # below, the result would be subnormal: it is 0
# Minimax polynomial of exp(r) on |r| <= ln(2)/2, from the Cephes library (expf), highest power first.
_POLYNOMIAL = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)


def exp_nonpositive(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(x) for x <= 0, elementwise; relative error below 2e-7; exactly 0 below -87, exactly 1 at 0.

    Range reduction x = n ln 2 + r after Cody and Waite.
    """
    clipped = np.maximum(x, _LOWEST)
    n = np.rint(clipped * _LOG2E)
    r = clipped - n * _LN2_HIGH
    r -= n * _LN2_LOW
    p = np.full_like(r, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p *= r
        p += coefficient
    p *= r * r
    p += r
    p += np.float32(1.0)
    power = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    p *= power
    p[x < _LOWEST] = 0.0
    return p
