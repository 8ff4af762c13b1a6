"""Rotary position embedding: its parameters as a model states them, and the frequencies that follow. Owns no state.

Sources: RoFormer (arXiv 2104.09864) for the rotation; linear interpolation (arXiv 2306.15595); dynamic NTK
as transformers' `dynamic` states it; YaRN (arXiv 2309.00071); the piecewise rule of Llama 3.1's code for `llama3`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """How one kind of layer turns positions into angles. Field names follow Hugging Face's `rope_parameters`.

    Only the fields of its `rope_type` are read. `original_context` is the context length before scaling.
    """

    theta: float = 10000.0
    rope_type: RopeType = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float = 1.0  # yarn: cos and sin are multiplied by it
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: whole-numbered correction range


def inverse_frequencies(rope: RopeParameters, head_dim: int) -> NDArray[np.float64]:
    """Radians per position of each column pair, [head_dim / 2]."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    if rope.rope_type == "dynamic":
        return _ntk_theta(rope, head_dim) ** -exponents
    plain: NDArray[np.float64] = rope.theta**-exponents
    if rope.rope_type == "linear":
        return plain / rope.factor
    if rope.rope_type == "llama3":
        return _llama3(rope, plain)
    if rope.rope_type == "yarn":
        return _yarn(rope, plain, head_dim)
    return plain


def _ntk_theta(rope: RopeParameters, head_dim: int) -> float:
    """The base of dynamic NTK at its limit, original_context * factor tokens.

    The published rule raises the base with the length of the running forward pass. Cached keys keep the base of the
    pass that wrote them, so the result would depend on how a prompt was chunked, cached or preempted. One base for all
    positions, the one the rule gives at the extended context limit, keeps a request's tokens the same however it is
    computed; vLLM decides likewise.
    """
    stretch = rope.factor  # the limit over the original context
    growth = rope.factor * stretch - (rope.factor - 1.0)
    return float(rope.theta * growth ** (head_dim / (head_dim - 2)))


def _llama3(rope: RopeParameters, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    rotations = rope.original_context * plain / (2 * math.pi)  # full turns within the original context
    blend = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = np.clip(blend, 0.0, 1.0)
    return kept * plain + (1.0 - kept) * plain / rope.factor


def _yarn(rope: RopeParameters, plain: NDArray[np.float64], head_dim: int) -> NDArray[np.float64]:
    """Pairs that turn more than beta_fast times in the original context are kept, below beta_slow interpolated."""

    def pair_turning(turns: float) -> float:
        return head_dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_turning(rope.beta_fast), pair_turning(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp, without dividing by zero
    interpolated = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
    blended: NDArray[np.float64] = plain * (1.0 - interpolated) + plain / rope.factor * interpolated
    return blended


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """YaRN's magnitude correction 0.1 ln(factor) + 1, or the quotient of two where a model gives both scales."""

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0

    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)
