"""Interprets a graph with NumPy in float32: the oracle of the tests and the fallback where nothing faster runs.

Owns the dequantized weights; writes KV storage during a step and keeps nothing else between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sojourn.graph import ops
from sojourn.graph import reference_ops as run
from sojourn.graph.graph import Graph, inputs
from sojourn.graph.kv_storage import KVStorage
from sojourn.graph.ops import Op, Value
from sojourn.graph.reference_attention import SequenceRows, attend
from sojourn.graph.reference_ops import Array, Rotation, Step
from sojourn.graph.rope import inverse_frequencies
from sojourn.records import StepPlan


@dataclass(frozen=True, slots=True)
class Call:
    """One op ready to run. `dead` are the values nobody reads after it, so a long prefill keeps only what is alive."""

    compute: Callable[..., Array]  # of the step and the inputs
    inputs: tuple[int, ...]
    out: int
    dead: tuple[int, ...]


class ReferenceExecutor:
    """`load(name)` gives a weight in float32 and is called once per weight. The graph must be bound to its checkpoint.

    Rows are computed by BLAS, which sums in another order for another number of rows: the same token in another batch
    may differ in the last bits.
    """

    def __init__(self, graph: Graph, load: Callable[[str], Array], kv: KVStorage) -> None:
        self.graph = graph
        self.kv = kv
        self._transposed = _linear_only(graph.ops)
        self._weights = {weight.name: self._arranged(weight.name, load(weight.name)) for weight in graph.weights}
        self._frequencies: dict[Rotation, NDArray[np.float64]] = {}
        self._body = self._compile(graph.body, graph.hidden)
        self._head = self._compile(graph.head, graph.logits)

    def forward(self, plan: StepPlan) -> Array:
        """Computes the plan's T tokens; writes their K and V. -> [T, hidden], rows to be given to `logits`."""
        return _run(self._body, self._step(plan), {}, self.graph.hidden)

    def logits(self, hidden: Array) -> Array:
        """Rows of `forward`'s result [R, hidden] -> [R, vocab]."""
        return _run(self._head, _NO_TOKENS, {self.graph.selected.index: hidden}, self.graph.logits)

    def _arranged(self, name: str, weight: Array) -> Array:
        # BLAS multiplies up to 32 rows by [in, out] in two thirds of the time that the stored [out, in] takes.
        return np.ascontiguousarray(weight.T if name in self._transposed else weight, np.float32)

    def argmax(self, hidden: Array) -> tuple[NDArray[np.int32], Array]:
        """The best token of each row [R, hidden], the lowest id on ties, and its logit; NaN if any of the row's is."""
        logits = self.logits(hidden)
        return logits.argmax(axis=1).astype(np.int32), logits.max(axis=1)

    def _step(self, plan: StepPlan) -> Step:
        block_size = self.kv.block_size
        counts = np.diff(plan.cu_seqlens_q)  # [S]
        sequence_of = np.repeat(np.arange(len(counts)), counts)  # [T]
        blocks = plan.block_tables[sequence_of, plan.positions // block_size].astype(np.intp)
        sequences = [
            SequenceRows(int(start), int(start + count), int(plan.positions[start]), block_table)
            for start, count, block_table in zip(plan.cu_seqlens_q[:-1], counts, plan.block_tables, strict=True)
            if count > 0
        ]
        slots = blocks * block_size + plan.positions % block_size
        return Step(plan.token_ids, slots, sequences, self._angles(plan.positions))

    def _angles(self, positions: NDArray[np.int32]) -> dict[Rotation, tuple[Array, Array]]:
        """cos and sin, each [T, 1, head_dim / 2], of every kind of rotation; float64 keeps far positions exact."""
        angles = {}
        for rotation, frequencies in self._frequencies.items():
            radians = positions[:, None, None] * frequencies
            magnitude = rotation[0].attention_factor
            cos, sin = np.cos(radians) * magnitude, np.sin(radians) * magnitude
            angles[rotation] = (cos.astype(np.float32), sin.astype(np.float32))
        return angles

    def _compile(self, section: tuple[Op, ...], result: Value) -> list[Call]:
        last_reader = {value.index: op for op in section for value in inputs(op)}
        calls = []
        for op in section:
            reads = tuple(value.index for value in inputs(op))
            dead = tuple(i for i in dict.fromkeys(reads) if last_reader[i] is op and i != result.index)
            calls.append(Call(self._prepare(op), reads, op.out.index, dead))
        return calls

    def _prepare(self, op: Op) -> Callable[..., Array]:
        """The op's function with its weights in place; what never changes is computed here, once."""
        match op:
            case ops.Embedding():
                return partial(run.embedding, self._weights[op.weight.name])
            case ops.RmsNorm():
                return partial(run.rms_norm, self._weights[op.weight.name] + np.float32(op.offset), op.eps)
            case ops.Linear():
                bias = None if op.bias is None else self._weights[op.bias.name]
                stored = self._weights[op.weight.name]
                return partial(run.linear, stored if op.weight.name in self._transposed else stored.T, bias)
            case ops.Rope():
                return partial(run.rope, self._register(op))
            case ops.Attention():
                return partial(self._attention, op)
            case ops.MoeExperts():
                experts = run.Experts(*(self._weights[weight.name] for weight in (op.gate, op.up, op.down)))
                return partial(run.moe_experts, op.activation, experts)
            case _:
                return partial(_WEIGHTLESS[type(op)], op)

    def _attention(self, op: ops.Attention, step: Step, q: Array, k: Array, v: Array) -> Array:
        # All of the step's K and V first: sequences of one step may share blocks, and a chunk attends to itself.
        self.kv.write(op.layer, step.slots, k, v)
        return attend(op, q, self.kv, step.sequences)

    def _register(self, op: ops.Rope) -> Rotation:
        """Frequencies of this op's rotation, once for all layers that rotate alike."""
        rotation = (op.parameters, op.head_dim, op.factors)
        if rotation not in self._frequencies:
            frequencies = inverse_frequencies(op.parameters, op.head_dim)
            divisors = 1.0 if op.factors is None else self._weights[op.factors.name]
            self._frequencies[rotation] = frequencies / divisors
        return rotation


def _linear_only(all_ops: Sequence[Op]) -> frozenset[str]:
    """Names of linear weights; one that is also the embedding is not among them, for it is looked up by rows."""
    embedded = {op.weight.name for op in all_ops if isinstance(op, ops.Embedding)}
    return frozenset(op.weight.name for op in all_ops if isinstance(op, ops.Linear)) - embedded


def _run(calls: list[Call], step: Step, values: dict[int, Array], result: Value) -> Array:
    # Infinities and NaNs travel on in silence: the sampler reports them, for the request that has them alone.
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        for call in calls:
            values[call.out] = call.compute(step, *[values[index] for index in call.inputs])
            for index in call.dead:
                del values[index]
    return values[result.index]


_NO_TOKENS = Step(np.empty(0, np.int32), np.empty(0, np.intp), [], {})

_WEIGHTLESS: dict[type[Op], Callable[..., Array]] = {
    ops.Glu: run.glu,
    ops.Add: run.add,
    ops.Scale: run.scale,
    ops.Softcap: run.softcap,
    ops.MoeRoute: run.moe_route,
}
