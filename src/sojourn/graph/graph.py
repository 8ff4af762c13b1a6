"""A model's forward pass as a list of op records, the weights it needs and the KV it keeps. Immutable once built.

Building checks every width; `bind` checks the weights against a checkpoint. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from sojourn.errors import BadModelFile
from sojourn.graph.ops import Attention, Op, SelectRows, Value, Weight

Operand = TypeVar("Operand", Value, Weight)

ELEMENT_BYTES = {"f16": 2, "f32": 4, "int8": 1}  # by KV dtype
SCALE_BYTES = 4  # beside each row of int8 codes
LISTED_NAMES = 8  # so that an error about the wrong file stays readable


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one layer keeps per token: K and V, each [kv_heads, head_dim]. No key older than `window` is read."""

    kv_heads: int
    head_dim: int
    window: int | None

    def token_bytes(self, kv_dtype: str) -> int:
        """K and V of one token."""
        row = ELEMENT_BYTES[kv_dtype] * self.head_dim + (SCALE_BYTES if kv_dtype == "int8" else 0)
        return 2 * self.kv_heads * row


@dataclass(frozen=True)
class Graph:
    """`ops` in execution order: the body over T rows, one SelectRows, the head over R rows. `logits` comes last."""

    ops: tuple[Op, ...]
    logits: Value
    layers: tuple[KVShape, ...]  # by layer index of the attention ops

    @property
    def body(self) -> tuple[Op, ...]:
        """Ops before the row selection, which need the whole step's tokens."""
        return self.ops[: self._selection]

    @property
    def head(self) -> tuple[Op, ...]:
        """Ops after the row selection: final norm and language-model head."""
        return self.ops[self._selection + 1 :]

    @property
    def hidden(self) -> Value:
        """The body's result, [T, hidden]."""
        return self._select_rows.x

    @property
    def selected(self) -> Value:
        """The head's input, [R, hidden]."""
        return self._select_rows.out

    @property
    def _selection(self) -> int:
        return next(i for i, op in enumerate(self.ops) if isinstance(op, SelectRows))

    @property
    def _select_rows(self) -> SelectRows:
        return next(op for op in self.ops if isinstance(op, SelectRows))

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Each weight once, in the order of first use."""
        return tuple(dict.fromkeys(weight for op in self.ops for weight in operands(op, Weight)))

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """The same graph with every alternative and optional weight decided by what the checkpoint holds.

        `shapes` maps the checkpoint's tensor names to their shapes. Raises BadModelFile listing what is missing or
        mis-shaped.
        """
        bound = replace(self, ops=tuple(_bind_op(op, shapes) for op in self.ops))
        missing = [f"{w.name} {list(w.shape)}" for w in bound.weights if w.name not in shapes]
        wrong = [
            f"{w.name} has shape {list(shapes[w.name])}, expected {list(w.shape)}"
            for w in bound.weights
            if w.name in shapes and tuple(shapes[w.name]) != w.shape
        ]
        if missing or wrong:
            parts = []
            if missing:
                parts.append(f"{len(missing)} missing tensor(s): {_listing(missing)}")
            if wrong:
                parts.append(f"{len(wrong)} tensor(s) of the wrong shape: {_listing(wrong)}")
            raise BadModelFile(f"The weights do not fit the model's configuration: {'; '.join(parts)}.")
        return bound

    def unexpected(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Names of checkpoint tensors this graph never reads; worth a warning, not an error."""
        used = {weight.name for weight in self.weights}
        return [name for name in shapes if name not in used]

    def __str__(self) -> str:
        """One op a line: `%1 [T, 576] = rms_norm(%0, model.layers.0.input_layernorm.weight, eps=1e-05, ...)`."""
        return "\n".join(_describe(op) for op in self.ops)


def operands(op: Op, kind: type[Operand]) -> Iterator[Operand]:
    """The op's fields that are values (its output first), or its weights."""
    for field in fields(op):
        operand = getattr(op, field.name)
        if isinstance(operand, kind):
            yield operand


def inputs(op: Op) -> list[Value]:
    """The values an op reads."""
    return [value for value in operands(op, Value) if value != op.out]


def kv_shape(op: Attention) -> KVShape:
    return KVShape(op.num_kv_heads, op.head_dim, op.window)


def _bind_op(op: Op, shapes: Mapping[str, tuple[int, ...]]) -> Op:
    decided: dict[str, Any] = {}
    for field in fields(op):
        weight = getattr(op, field.name)
        if not isinstance(weight, Weight):
            continue
        if weight.alternative is not None:
            decided[field.name] = Weight(weight.name if weight.name in shapes else weight.alternative, weight.shape)
        elif weight.optional:
            decided[field.name] = Weight(weight.name, weight.shape) if weight.name in shapes else None
    return replace(op, **decided) if decided else op


def _listing(names: list[str]) -> str:
    more = len(names) - LISTED_NAMES
    return ", ".join(names[:LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def _describe(op: Op) -> str:
    arguments = []
    for field in fields(op):
        operand = getattr(op, field.name)
        if field.name == "out" or operand is None:
            continue
        plain = isinstance(operand, (Value, Weight))
        arguments.append(str(operand) if plain else f"{field.name}={operand}")
    name = "".join("_" + c.lower() if c.isupper() else c for c in type(op).__name__).lstrip("_")
    return f"{op.out} [{op.out.rows.value}, {op.out.width}] = {name}({', '.join(arguments)})"
