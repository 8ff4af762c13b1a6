"""What model files write with: one method per op, each checking widths at the call and returning the op's output value.

Owns the growing op list until `finish`; knows no architecture. A width that does not fit is a
ValueError: the model file is wrong.
"""

from __future__ import annotations

from sojourn.graph import ops
from sojourn.graph.graph import Graph, KVShape, kv_shape
from sojourn.graph.ops import Activation, Op, Rows, Value, Weight
from sojourn.graph.rope import RopeParameters


class GraphBuilder:
    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._layers: list[KVShape] = []

    def embedding(self, weight: str, *, vocab_size: int, width: int) -> Value:
        """-> [T, width]"""
        out = self._value(Rows.T, width)
        self._ops.append(ops.Embedding(out, Weight(weight, (vocab_size, width))))
        return out

    def rms_norm(self, x: Value, weight: str, *, eps: float, group: int | None = None, offset: float = 0.0) -> Value:
        """Over the whole width, or over each `group` columns (a norm per head)."""
        size = x.width if group is None else group
        _require(x.width % size == 0, f"{weight}: groups of {size} do not divide a width of {x.width}")
        out = self._value(x.rows, x.width)
        self._ops.append(ops.RmsNorm(out, x, Weight(weight, (size,)), eps, size, offset))
        return out

    def linear(
        self, x: Value, weight: str, width: int, *, bias: str | None = None, alternative: str | None = None
    ) -> Value:
        """-> [rows, width]; `alternative` names the tensor to use where the checkpoint has no `weight`."""
        out = self._value(x.rows, width)
        offset = None if bias is None else Weight(bias, (width,))
        self._ops.append(ops.Linear(out, x, Weight(weight, (width, x.width), alternative), offset))
        return out

    def rope(self, x: Value, parameters: RopeParameters, *, head_dim: int, factors: str | None = None) -> Value:
        """`factors` names a tensor of frequency divisors, [head_dim / 2], used where the checkpoint has it."""
        _require(head_dim % 2 == 0, f"rope: head_dim {head_dim} is odd")
        _require(x.width % head_dim == 0, f"rope: heads of {head_dim} do not divide a width of {x.width}")
        out = self._value(x.rows, x.width)
        divisors = None if factors is None else Weight(factors, (head_dim // 2,), optional=True)
        self._ops.append(ops.Rope(out, x, head_dim, parameters, divisors))
        return out

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        head_dim: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Value:
        """Head counts follow from the widths; layers are numbered in the order of these calls."""
        _require(k.width == v.width, f"attention: k is {k.width} wide, v {v.width}")
        _require(
            q.width % head_dim == 0 and k.width % head_dim == 0,
            f"attention: head_dim {head_dim} does not divide q or k",
        )
        heads, kv_heads = q.width // head_dim, k.width // head_dim
        _require(heads % kv_heads == 0, f"attention: {heads} heads can't share {kv_heads} KV heads evenly")
        _require(window is None or window > 0, "attention: the window must hold a token")
        out = self._value(q.rows, q.width)
        layer = len(self._layers)
        op = ops.Attention(out, q, k, v, layer, heads, kv_heads, head_dim, scale, window, softcap)
        self._ops.append(op)
        self._layers.append(kv_shape(op))
        return out

    def glu(self, gate: Value, up: Value, activation: Activation) -> Value:
        _require(gate.width == up.width, f"glu: gate is {gate.width} wide, up {up.width}")
        out = self._value(gate.rows, gate.width)
        self._ops.append(ops.Glu(out, gate, up, activation))
        return out

    def add(self, a: Value, b: Value) -> Value:
        _require((a.rows, a.width) == (b.rows, b.width), f"add: {a.width} columns and {b.width}")
        out = self._value(a.rows, a.width)
        self._ops.append(ops.Add(out, a, b))
        return out

    def scale(self, x: Value, factor: float) -> Value:
        out = self._value(x.rows, x.width)
        self._ops.append(ops.Scale(out, x, factor))
        return out

    def softcap(self, x: Value, cap: float) -> Value:
        out = self._value(x.rows, x.width)
        self._ops.append(ops.Softcap(out, x, cap))
        return out

    def moe_route(self, logits: Value, *, top_k: int, normalize: bool) -> Value:
        """Router logits [T, experts] -> mixing weights [T, experts]."""
        _require(0 < top_k <= logits.width, f"moe_route: top {top_k} of {logits.width} experts")
        out = self._value(logits.rows, logits.width)
        self._ops.append(ops.MoeRoute(out, logits, top_k, normalize))
        return out

    def moe_experts(self, x: Value, route: Value, prefix: str, *, intermediate: int, activation: Activation) -> Value:
        """Stacked weights `<prefix>.gate_proj.weight`, `.up_proj.weight`, `.down_proj.weight`."""
        inward = (route.width, intermediate, x.width)
        outward = (route.width, x.width, intermediate)
        gate, up = (Weight(f"{prefix}.{name}.weight", inward) for name in ("gate_proj", "up_proj"))
        out = self._value(x.rows, x.width)
        self._ops.append(
            ops.MoeExperts(out, x, route, gate, up, Weight(f"{prefix}.down_proj.weight", outward), activation)
        )
        return out

    def select_rows(self, x: Value) -> Value:
        """[T, width] -> [R, width]; once, between body and head."""
        _require(x.rows is Rows.T, "select_rows: the rows are selected already")
        out = self._value(Rows.R, x.width)
        self._ops.append(ops.SelectRows(out, x))
        return out

    def finish(self, logits: Value) -> Graph:
        """The graph, whose last value is `logits` [R, vocab]."""
        _require(logits.rows is Rows.R, "finish: the logits must come from selected rows")
        _require(bool(self._ops) and self._ops[-1].out == logits, "finish: the logits must be the last value")
        return Graph(tuple(self._ops), logits, tuple(self._layers))

    def _value(self, rows: Rows, width: int) -> Value:
        _require(width > 0, "a value needs at least one column")
        return Value(len(self._ops), rows, width)


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)
