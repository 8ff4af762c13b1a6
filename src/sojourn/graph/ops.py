"""The op records a model's forward pass is made of. Plain data: an executor gives them meaning, nothing here computes.

Every value has symbolic rows and a fixed width. T rows are one per token of the step, R rows one per token whose logits
are wanted; both numbers are known only at run time, so one graph serves every batch.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from sojourn.graph.rope import RopeParameters


class Rows(enum.Enum):
    T = "T"  # tokens of the step
    R = "R"  # tokens whose logits are wanted


@dataclass(frozen=True, slots=True)
class Value:
    """One intermediate array [rows, width], float32. Written by exactly one op; `index` is its place in that order."""

    index: int
    rows: Rows
    width: int

    def __str__(self) -> str:
        return f"%{self.index}"


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the checkpoint, by its Hugging Face name and the shape it must have.

    `alternative` names the tensor to take when the checkpoint lacks this one (a head that shares the embedding); an
    `optional` one is left out then. Binding a graph decides both.
    """

    name: str
    shape: tuple[int, ...]
    alternative: str | None = None
    optional: bool = False

    def __str__(self) -> str:
        return self.name


Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Embedding:
    """out[t] = weight[token_ids[t]]; weight [vocab, width]."""

    out: Value
    weight: Weight


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out = x / rms(x) * (weight + offset), the mean taken over each group of `group` columns; weight [group]."""

    out: Value
    x: Value
    weight: Weight
    eps: float
    group: int  # the whole width, or head_dim for a norm per head
    offset: float  # 1.0 where a model stores its weights as w with meaning 1 + w


@dataclass(frozen=True, slots=True)
class Linear:
    """out = x @ weight.T (+ bias); weight [out width, x width], bias [out width]."""

    out: Value
    x: Value
    weight: Weight
    bias: Weight | None


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates each head of x by its token's position, pairing column i with column i + head_dim / 2."""

    out: Value
    x: Value
    head_dim: int
    parameters: RopeParameters
    factors: Weight | None  # [head_dim / 2] divisors of the frequencies, where a checkpoint brings its own


@dataclass(frozen=True, slots=True)
class Attention:
    """Writes k and v of this step to the layer's KV blocks, all of them, and only then attends.

    q [T, num_heads * head_dim]; k, v [T, num_kv_heads * head_dim]; out like q. A token at position p sees positions
    max(0, p - window + 1) to p. Scores are q . k * scale, through cap * tanh(score / cap) where softcap is set.
    """

    out: Value
    q: Value
    k: Value
    v: Value
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None


@dataclass(frozen=True, slots=True)
class Glu:
    """out = activation(gate) * up."""

    out: Value
    gate: Value
    up: Value
    activation: Activation


@dataclass(frozen=True, slots=True)
class Add:
    """out = a + b."""

    out: Value
    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Scale:
    """out = x * factor."""

    out: Value
    x: Value
    factor: float


@dataclass(frozen=True, slots=True)
class Softcap:
    """out = cap * tanh(x / cap)."""

    out: Value
    x: Value
    cap: float


@dataclass(frozen=True, slots=True)
class MoeRoute:
    """out [T, experts]: mixing weights of the top_k experts of each row of router logits x, zero for the others.

    Weights are a softmax over all experts; `normalize` makes the chosen ones sum to 1. The lower id wins a tie.
    """

    out: Value
    x: Value
    top_k: int
    normalize: bool


@dataclass(frozen=True, slots=True)
class MoeExperts:
    """out = sum over the chosen experts of route * down(activation(gate(x)) * up(x)).

    gate, up [experts, intermediate, width]; down [experts, width, intermediate].
    """

    out: Value
    x: Value
    route: Value
    gate: Weight
    up: Weight
    down: Weight
    activation: Activation


@dataclass(frozen=True, slots=True)
class SelectRows:
    """out [R, width] = the rows of x [T, width] whose logits are wanted. Between the body of a graph and its head."""

    out: Value
    x: Value


Op = Embedding | RmsNorm | Linear | Rope | Attention | Glu | Add | Scale | Softcap | MoeRoute | MoeExperts | SelectRows
