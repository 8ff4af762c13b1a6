"""Turns a graph's op records into calls that build the native executor. Computes nothing itself.

What is shortened on the way: projections of the same input become one matrix op, a sum with a projection becomes its
epilogue, activations are quantized once per input, and values share buffers once nobody reads them any more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from sojourn.graph import Graph
from sojourn.graph import ops as o
from sojourn.graph.graph import inputs
from sojourn.graph.key_centers import key_centers
from sojourn.graph.ops import Op, Value, Weight
from sojourn.graph.rope import inverse_frequencies
from sojourn.native import Executor
from sojourn.weights.checkpoint import Checkpoint

FLOAT_FORMATS = frozenset({"F32", "F16", "BF16"})  # weights whose activations stay float
LANES = 16
NO_CENTER = np.empty(0, np.float32)
OnWeight = Callable[[int, int], None]


def unsupported(graph: Graph, block_size: int) -> str | None:
    """Why the native executor can't run this graph, or None if it can."""
    if any(layer.head_dim % LANES for layer in graph.layers):
        return f"its head dimension is not a multiple of {LANES}"
    if block_size % LANES:
        return f"--block-size {block_size} is not a multiple of {LANES}"
    return None


class Lowering:
    """Used once: KV layers, then the body, then the head."""

    def __init__(self, executor: Executor, checkpoint: Checkpoint, on_weight: OnWeight) -> None:
        self._executor = executor
        self._tensors = checkpoint.tensors
        self._on_weight = on_weight
        self._buffers: dict[int, int] = {}  # value index -> buffer
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # width -> buffers nobody reads any more
        self._quantized: set[int] = set()  # value indices
        self._rotations: dict[tuple[object, int, str | None], int] = {}
        self._kv_layers: dict[int, int] = {}
        self._uses: Counter[int] = Counter()
        self._last_use: dict[int, Op] = {}
        self._num_weights = 1
        self._loaded = 0

    def add_kv(self, graph: Graph, num_blocks: int, block_size: int, kv_dtype: str) -> None:
        self._num_weights = len(graph.weights)
        centers = key_centers(graph, lambda name: self._tensors[name].float32()) if kv_dtype == "int8" else {}
        for op in graph.ops:
            if isinstance(op, o.Attention):
                self._kv_layers[op.layer] = self._executor.add_kv_layer(
                    num_heads=op.num_heads,
                    num_kv_heads=op.num_kv_heads,
                    head_dim=op.head_dim,
                    block_size=block_size,
                    scale=op.scale,
                    window=op.window or 0,
                    softcap=op.softcap or 0.0,
                    kv_type=kv_dtype,
                    num_blocks=num_blocks,
                    key_center=centers[op.layer].reshape(-1) if op.layer in centers else NO_CENTER,
                )

    def take(self, value: Value) -> int:
        """The value's buffer; a new value gets one that is free."""
        if value.index not in self._buffers:
            free = self._free[value.width]
            self._buffers[value.index] = free.pop() if free else self._executor.add_buffer(value.width)
        return self._buffers[value.index]

    def section(self, section: Sequence[Op], result: Value) -> int:
        """Lowers the body or the head; returns the buffer of its result."""
        self._uses = Counter(value.index for op in section for value in inputs(op))
        self._last_use = {value.index: op for op in section for value in inputs(op)}
        self._last_use.pop(result.index, None)
        position = 0
        while position < len(section):
            taken = self._lower(section, position)
            for op in section[position : position + taken]:
                for value in inputs(op):
                    if self._last_use.get(value.index) is op:
                        self._release(value)
            position += taken
        return self.take(result)

    def _release(self, value: Value) -> None:
        buffer = self._buffers.get(value.index)
        if buffer is not None and self._last_use.pop(value.index, None) is not None:
            self._free[value.width].append(buffer)

    def _lower(self, section: Sequence[Op], position: int) -> int:
        """Emits the op at `position`, together with those after it that it absorbs; returns how many that were."""
        op = section[position]
        match op:
            case o.Embedding():
                return self._embedding(op, section[position + 1 : position + 2])
            case o.Linear():
                return self._linear(section, position)
            case o.RmsNorm():
                x, out = self.take(op.x), self._successor(op, op.x, op.out)
                self._executor.rms_norm(x, out, self._vector(op.weight), op.group, op.eps, op.offset)
            case o.Rope():
                self._in_place(op, op.x, op.out)
                self._executor.rope(self.take(op.out), op.head_dim, self._rotation(op))
            case o.Attention():
                q, k, v, out = (self.take(value) for value in (op.q, op.k, op.v, op.out))
                self._executor.attention(q, k, v, out, self._kv_layers[op.layer])
            case o.Glu():
                gate, up = self.take(op.gate), self.take(op.up)
                self._executor.glu(gate, up, self._successor(op, op.gate, op.out), op.activation)
            case o.MoeRoute():
                return self._mixture(op, section[position + 1])
            case o.Add():
                self._executor.add(self.take(op.a), self.take(op.b), self.take(op.out))
            case o.Scale():
                self._in_place(op, op.x, op.out)
                self._executor.scale(self.take(op.out), op.factor)
            case o.Softcap():
                self._in_place(op, op.x, op.out)
                self._executor.softcap(self.take(op.out), op.cap)
            case _:
                raise TypeError(f"this is a bug: {op} has no native op")
        return 1

    def _embedding(self, op: o.Embedding, following: Sequence[Op]) -> int:
        scale = next((f for f in following if isinstance(f, o.Scale) and f.x == op.out), None)
        table = self._tensors[op.weight.name]
        out = self.take(op.out if scale is None else scale.out)
        rows, width = op.weight.shape
        factor = 1.0 if scale is None else scale.factor
        self._executor.embed(out, table.format, table.data.reshape(-1), rows, width, factor)
        self._count()
        return 1 if scale is None else 2

    def _linear(self, section: Sequence[Op], position: int) -> int:
        first = section[position]
        assert isinstance(first, o.Linear)
        group = [first]
        for op in section[position + 1 :]:
            if not isinstance(op, o.Linear) or op.x != first.x:
                break
            group.append(op)
        matrices = [self._matrix(op.weight) for op in group]
        if any(integer for _, integer in matrices):
            self._quantize(first.x)
        x, taken = self.take(first.x), len(group)
        residual, outs = -1, [op.out for op in group]
        following = section[position + taken] if position + taken < len(section) else None
        alone = len(group) == 1 and self._uses[first.out.index] == 1
        if alone and isinstance(following, o.Add) and first.out in (following.a, following.b):
            partner = following.b if following.a == first.out else following.a
            residual, outs, taken = self.take(partner), [following.out], taken + 1
        biases = [-1 if op.bias is None else self._vector(op.bias) for op in group]
        self._executor.matmul(x, [m for m, _ in matrices], [self.take(out) for out in outs], biases, residual)
        return taken

    def _mixture(self, route: o.MoeRoute, experts: Op) -> int:
        """Routing and experts are one native op, which keeps the route to itself."""
        assert isinstance(experts, o.MoeExperts), f"this is a bug: {route} is not followed by its experts"
        assert experts.route == route.out, f"this is a bug: {experts} follow another route"
        (gate, integer_gate), (up, integer_up), (down, _) = (
            self._stacked(weight) for weight in (experts.gate, experts.up, experts.down)
        )
        if integer_gate or integer_up:
            self._quantize(experts.x)
        x, scores, out = self.take(experts.x), self.take(route.x), self.take(experts.out)
        self._executor.experts(x, scores, out, gate, up, down, route.top_k, route.normalize, experts.activation)
        return 2

    def _quantize(self, x: Value) -> None:
        if x.index not in self._quantized:
            self._executor.quantize(self.take(x))
            self._quantized.add(x.index)

    def _successor(self, op: Op, x: Value, out: Value) -> int:
        """Where `out` goes: into x's own buffer if nobody reads x after this op."""
        if self._last_use.get(x.index) is op and self._uses[x.index] == 1:
            self._hand_over(x, out)
        return self.take(out)

    def _in_place(self, op: Op, x: Value, out: Value) -> None:
        """For ops that overwrite their input."""
        assert self._last_use.get(x.index) is op, f"this is a bug: {op} overwrites what is still read"
        self._hand_over(x, out)

    def _hand_over(self, x: Value, out: Value) -> None:
        self._buffers[out.index] = self.take(x)
        self._last_use.pop(x.index)

    def _matrix(self, weight: Weight) -> tuple[int, bool]:
        tensor = self._tensors[weight.name]
        rows, width = weight.shape
        matrix = self._executor.add_matrix(tensor.format, tensor.data.reshape(-1), rows, width)
        self._count()
        return matrix, tensor.format not in FLOAT_FORMATS

    def _stacked(self, weight: Weight) -> tuple[list[int], bool]:
        """One matrix per expert, and whether they take quantized activations."""
        tensor = self._tensors[weight.name]
        experts, rows, width = weight.shape
        slices = tensor.data.reshape(experts, -1)
        matrices = [self._executor.add_matrix(tensor.format, data, rows, width) for data in slices]
        self._count()
        return matrices, tensor.format not in FLOAT_FORMATS

    def _vector(self, weight: Weight) -> int:
        vector = self._executor.add_vector(self._tensors[weight.name].float32().reshape(-1))
        self._count()
        return vector

    def _rotation(self, op: o.Rope) -> int:
        key = (op.parameters, op.head_dim, None if op.factors is None else op.factors.name)
        if key not in self._rotations:
            frequencies = inverse_frequencies(op.parameters, op.head_dim)
            if op.factors is not None:
                frequencies = frequencies / self._tensors[op.factors.name].float32()
            self._rotations[key] = self._executor.add_rotation(
                np.ascontiguousarray(frequencies, np.float64), op.parameters.attention_factor
            )
        return self._rotations[key]

    def _count(self) -> None:
        self._loaded += 1
        self._on_weight(min(self._loaded, self._num_weights), self._num_weights)
