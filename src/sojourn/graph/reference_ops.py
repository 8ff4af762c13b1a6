"""What each op record computes, in NumPy. Pure functions of what is fixed at load, the step and the inputs.

Attention is in reference_attention.py. Arrays are float32 with one row per token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.graph import ops
from sojourn.graph.ops import Activation, Weight
from sojourn.graph.reference_attention import SequenceRows
from sojourn.graph.rope import RopeParameters

Array = NDArray[np.float32]
Rotation = tuple[RopeParameters, int, Weight | None]  # what tells one kind of Rope op from another, head_dim second

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)  # a Python float: a NumPy one would widen the arrays to float64


@dataclass(frozen=True, slots=True)
class Step:
    """A plan in the form the ops want."""

    token_ids: NDArray[np.int32]  # [T]
    slots: NDArray[np.intp]  # [T] where each token's K and V go
    sequences: list[SequenceRows]
    angles: Mapping[Rotation, tuple[Array, Array]]  # cos and sin of each token's position, [T, 1, head_dim / 2]


def embedding(weight: Array, step: Step) -> Array:
    out: Array = weight[step.token_ids]
    return out


def rms_norm(scale: Array, eps: float, step: Step, x: Array) -> Array:
    """`scale` [group] is what the normalised values are multiplied by."""
    groups = x.reshape(len(x), -1, len(scale))
    mean_square = np.square(groups).sum(axis=-1, keepdims=True) / len(scale)
    out: Array = groups / np.sqrt(mean_square + eps) * scale
    return out.reshape(x.shape)


def linear(weight: Array, bias: Array | None, step: Step, x: Array) -> Array:
    """`weight` is [in, out]."""
    out: Array = x @ weight
    if bias is not None:
        out += bias
    return out


def rope(rotation: Rotation, step: Step, x: Array) -> Array:
    cosines, sines = step.angles[rotation]
    half = cosines.shape[-1]
    heads = x.reshape(len(x), -1, 2 * half)
    first, second = heads[..., :half], heads[..., half:]
    out = np.empty_like(heads)
    out[..., :half] = first * cosines - second * sines
    out[..., half:] = second * cosines + first * sines
    return out.reshape(x.shape)


def glu(op: ops.Glu, step: Step, gate: Array, up: Array) -> Array:
    return gated(op.activation, gate, up)


def gated(activation: Activation, gate: Array, up: Array) -> Array:
    """activation(gate) * up; silu(x) = x / (1 + e^-x), gelu in its tanh form (arXiv 1606.08415)."""
    if activation == "silu":
        divisor: Array = np.exp(-gate)
        divisor += 1.0
        return gate / divisor * up
    inner = gate * gate
    inner *= 0.044715
    inner += 1.0
    inner *= gate
    inner *= SQRT_2_OVER_PI
    np.tanh(inner, out=inner)
    inner += 1.0
    return inner * gate * up * 0.5


def add(op: ops.Add, step: Step, a: Array, b: Array) -> Array:
    return a + b


def scale(op: ops.Scale, step: Step, x: Array) -> Array:
    return x * op.factor


def softcap(op: ops.Softcap, step: Step, x: Array) -> Array:
    out = x / op.cap
    np.tanh(out, out=out)
    out *= op.cap
    return out


def moe_route(op: ops.MoeRoute, step: Step, logits: Array) -> Array:
    """[T, experts] -> mixing weights [T, experts], zero for the experts not chosen."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    chosen = np.argsort(-weights, axis=-1, kind="stable")[:, : op.top_k]  # stable: the lower id wins a tie
    kept = np.take_along_axis(weights, chosen, axis=-1)
    if op.normalize:
        kept /= kept.sum(axis=-1, keepdims=True)
    out: Array = np.zeros_like(weights)
    np.put_along_axis(out, chosen, kept, axis=-1)
    return out


class Experts(NamedTuple):
    gate: Array  # [experts, intermediate, width]
    up: Array  # [experts, intermediate, width]
    down: Array  # [experts, width, intermediate]


def moe_experts(activation: Activation, experts: Experts, step: Step, x: Array, route: Array) -> Array:
    """Each expert computes the rows that chose it; sums run in the order of expert ids."""
    out = np.zeros_like(x)
    for expert in np.flatnonzero(route.any(axis=0)):
        rows = np.flatnonzero(route[:, expert])
        hidden = gated(activation, x[rows] @ experts.gate[expert].T, x[rows] @ experts.up[expert].T)
        out[rows] += (hidden @ experts.down[expert].T) * route[rows, expert, None]
    return out
