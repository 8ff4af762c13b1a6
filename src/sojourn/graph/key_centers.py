"""The constant part of a layer's keys, known from its weights. Pure functions, no state.

A vector that is subtracted from all keys of a layer changes each query's scores by the same amount, which the softmax
does not see. Keys are therefore coded without the bias of their projection, which in some models is a hundred times
larger than what varies, and would take most of the codes' range. The rotation leaves it constant only in those columns
that it hardly turns; elsewhere the centre is zero.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sojourn.graph import ops
from sojourn.graph.graph import Graph
from sojourn.graph.rope import inverse_frequencies

Array = NDArray[np.float32]

SLOW = 1 / 32768  # radians a position: one radian over 32,768 tokens, so that what is left is below the bias itself


def key_centers(graph: Graph, load: Callable[[str], Array]) -> dict[int, Array]:
    """By layer, [kv_heads, head_dim] for those that have one. `load(name)` gives a weight in float32."""
    producer = {op.out: op for op in graph.ops}
    centers = {}
    for op in graph.ops:
        if not isinstance(op, ops.Attention) or op.softcap is not None:  # a cap does see the shift
            continue
        rope = producer[op.k]
        if not isinstance(rope, ops.Rope) or rope.factors is not None:
            continue
        linear = producer[rope.x]
        if not isinstance(linear, ops.Linear) or linear.bias is None:
            continue
        slow = inverse_frequencies(rope.parameters, op.head_dim) <= SLOW
        bias = load(linear.bias.name).reshape(op.num_kv_heads, op.head_dim) * np.tile(slow, 2)
        centers[op.layer] = (bias * rope.parameters.attention_factor).astype(np.float32)
    return centers
