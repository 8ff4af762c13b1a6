"""Each vector kernel on each instruction set against its twin in NumPy float64, and equal bits whatever the company."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sojourn.graph import kv_codes
from sojourn.native import isas, vector_ops
from sojourn.native.vector_ops import AttentionShape, PagedKV

Array = NDArray[np.float32]
Double = NDArray[np.float64]

ISAS = isas()[::-1]  # portable first
FUSED_ISAS = [isa for isa in ISAS if isa != "portable"]  # those with a fused multiply-add: equal bits among them

every_isa = pytest.mark.parametrize("isa", ISAS)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


def close(actual: Array, expected: Double, *, relative: float, absolute: float = 0.0) -> None:
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=relative, atol=absolute)


# Norms, rotation, gates, sums


def rms_norm_twin(x: Array, weight: Array, eps: float, offset: float) -> Double:
    groups = x.astype(np.float64).reshape(len(x), -1, len(weight))
    rms = np.sqrt(np.square(groups).mean(axis=-1, keepdims=True) + eps)
    out: Double = (groups / rms * (weight.astype(np.float64) + offset)).reshape(x.shape)
    return out


@every_isa
@pytest.mark.parametrize(
    ("width", "group"), [(576, 576), (640, 640), (896, 896), (576, 64), (1024, 256), (16, 16), (30, 15), (100, 100)]
)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(isa: str, width: int, group: int, offset: float) -> None:
    x, weight = normal(1, 5, width) * 3, normal(2, group)
    actual = vector_ops.rms_norm(isa, x, weight, eps=1e-5, offset=offset)
    close(actual, rms_norm_twin(x, weight, 1e-5, offset), relative=1e-6, absolute=1e-6)


@every_isa
@pytest.mark.parametrize("width", [576, 100])
def test_rms_norm_of_a_row_does_not_depend_on_other_rows(isa: str, width: int) -> None:
    x, weight = normal(3, 7, width), normal(4, width)
    together = vector_ops.rms_norm(isa, x, weight)
    alone = [vector_ops.rms_norm(isa, x[i : i + 1], weight)[0] for i in range(len(x))]
    assert same_bits(together, np.stack(alone))


@every_isa
@pytest.mark.parametrize(("heads", "head_dim"), [(9, 64), (2, 128), (1, 256), (3, 80), (2, 16), (1, 10)])
def test_rope_is_that_of_float32_numpy(isa: str, heads: int, head_dim: int) -> None:
    x, angles = normal(5, 4, heads * head_dim), normal(6, 4, head_dim // 2) * 10
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = np.split(x.reshape(4, heads, head_dim), 2, axis=-1)
    c, s = cos[:, None], sin[:, None]
    expected = np.concatenate([first * c - second * s, second * c + first * s], axis=-1).reshape(x.shape)
    assert same_bits(vector_ops.rope(isa, x, head_dim, cos, sin), expected)


def gated_twin(gate: Array, up: Array, activation: str) -> Double:
    x = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        if activation == "silu":
            factor = 1 / (1 + np.exp(-x))
        else:
            factor = 1 / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # (1 + tanh(u)) / 2
    return x * factor * up


@every_isa
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [1536, 64, 37])
def test_glu(isa: str, activation: Literal["silu", "gelu_tanh"], width: int) -> None:
    gate, up = normal(7, 3, width) * 4, normal(8, 3, width)
    # The tail of gelu magnifies the rounding of the exponent's argument.
    relative, absolute = (3e-7, 0.0) if activation == "silu" else (3e-7, 2e-7)
    actual = vector_ops.glu(isa, gate, up, activation)
    close(actual, gated_twin(gate, up, activation), relative=relative, absolute=absolute)


@every_isa
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_glu_far_from_zero(isa: str, activation: Literal["silu", "gelu_tanh"]) -> None:
    gate = np.array([[-3e38, -1e30, -1e5, -200, -90, -88.5, -60, -0.0, 0, 60, 88.5, 90, 200, 1e5, 1e12]], np.float32)
    out = vector_ops.glu(isa, gate, np.ones_like(gate), activation)
    close(out, np.where(gate > 0, gate.astype(np.float64), 0), relative=1e-6, absolute=1e-24)


@every_isa
def test_glu_touches_only_its_columns_and_they_do_not_depend_on_the_split(isa: str) -> None:
    gate, up = normal(9, 3, 200), normal(10, 3, 200)
    whole = vector_ops.glu(isa, gate, up, "silu")
    part = vector_ops.glu(isa, gate, up, "silu", columns=(13, 187))
    assert same_bits(np.ascontiguousarray(part[:, 13:187]), np.ascontiguousarray(whole[:, 13:187]))
    assert not part[:, :13].any()
    assert not part[:, 187:].any()


@every_isa
@pytest.mark.parametrize("length", [1, 15, 16, 17, 576])
def test_add_and_scale_are_exact(isa: str, length: int) -> None:
    a, b = normal(11, length), normal(12, length)
    assert same_bits(vector_ops.add(isa, a, b), a + b)
    assert same_bits(vector_ops.scale(isa, a, 1.7), a * np.float32(1.7))


@every_isa
@pytest.mark.parametrize("cap", [1.0, 30.0, 50.0])
def test_softcap(isa: str, cap: float) -> None:
    a = np.concatenate([np.linspace(-500, 500, 4001), np.geomspace(1e-30, 1e30, 500), [0.0, -0.0]]).astype(np.float32)
    close(vector_ops.softcap(isa, a, cap), cap * np.tanh(a.astype(np.float64) / cap), relative=4e-7)


def test_a_name_or_shape_that_does_not_fit_is_refused() -> None:
    x = normal(1, 2, 48)
    with pytest.raises(ValueError, match="no instruction set sse9"):
        vector_ops.scale("sse9", x[0], 2.0)
    with pytest.raises(ValueError, match="multiple of the weight's length"):
        vector_ops.rms_norm("portable", x, normal(1, 32))
    with pytest.raises(ValueError, match="multiple of head_dim"):
        vector_ops.rope("portable", x, 32, normal(1, 2, 16), normal(1, 2, 16))
    with pytest.raises(ValueError, match="block_size must be a multiple of 16"):
        PagedKV("portable", AttentionShape(2, 1, 32, block_size=24), 1)


# Attention


def coded(rows: Array) -> Array:
    return kv_codes.decode(*kv_codes.encode(rows))


def attention_twin(shape: AttentionShape, q: Array, k: Array, v: Array, positions: NDArray[np.int64]) -> Double:
    """q [rows, heads * dim], k and v [context, kv_heads * dim] in float64 after rounding to the storage type."""
    keys, values = (rows.reshape(len(rows), shape.num_kv_heads, -1) for rows in (k, v))
    if shape.kv_type == "int8":
        keys, values = kv_codes.hadamard(coded(kv_codes.hadamard(keys))), coded(values)
    elif shape.kv_type == "f16":
        keys, values = keys.astype(np.float16), values.astype(np.float16)
    keys, values = keys.astype(np.float64), values.astype(np.float64)
    out = np.empty((len(q), shape.num_heads, shape.head_dim))
    for row, position in enumerate(positions):
        first = max(0, position - shape.window + 1) if shape.window else 0
        for head in range(shape.num_heads):
            kv_head = head * shape.num_kv_heads // shape.num_heads
            query = q[row, head * shape.head_dim : (head + 1) * shape.head_dim].astype(np.float64)
            scores = keys[first : position + 1, kv_head] @ query * shape.scale
            if shape.softcap:
                scores = shape.softcap * np.tanh(scores / shape.softcap)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[first : position + 1, kv_head] / weights.sum()
    return out.reshape(q.shape)


class Case:
    """One sequence's K and V written into shuffled blocks of a storage that holds NaN everywhere else."""

    def __init__(self, shape: AttentionShape, context: int, *, seed: int = 0) -> None:
        self.shape, self.context = shape, context
        self.k = normal(seed, context, shape.num_kv_heads * shape.head_dim)
        self.v = normal(seed + 1, context, shape.num_kv_heads * shape.head_dim)
        self.q = normal(seed + 2, context, shape.num_heads * shape.head_dim)
        blocks = -(-context // shape.block_size)
        self.num_blocks = 2 * blocks + 1
        self.table = np.random.default_rng(seed).permutation(self.num_blocks)[:blocks].astype(np.int32)

    def storage(self, isa: str, written: int | None = None) -> PagedKV:
        kv = PagedKV(isa, self.shape, self.num_blocks)
        written = self.context if written is None else written
        kv.write(self.table, 0, self.k[:written], self.v[:written])
        return kv

    def attend(self, isa: str, positions: NDArray[np.int64], *, tile: int = 24) -> Array:
        return self.storage(isa).attend(self.table, positions, self.q[positions], tile=tile)

    def check(self, isa: str, positions: NDArray[np.int64], *, tile: int = 24) -> None:
        expected = attention_twin(self.shape, self.q[positions], self.k, self.v, positions)
        close(self.attend(isa, positions, tile=tile), expected, relative=2e-5, absolute=3e-6)


def shape_of(heads: int, kv_heads: int, dim: int, **options: object) -> AttentionShape:
    return AttentionShape(heads, kv_heads, dim, scale=dim**-0.5, **options)  # type: ignore[arg-type]


SHAPES = [(9, 3, 64), (14, 2, 64), (4, 1, 256), (4, 4, 128), (8, 1, 80), (16, 1, 16), (5, 1, 112), (2, 2, 32)]


@every_isa
@pytest.mark.parametrize("heads", SHAPES)
@pytest.mark.parametrize("kv_type", ["f16", "f32", "int8"])
@pytest.mark.parametrize("block_size", [16, 32, 48, 512])
def test_prefill_attention(isa: str, heads: tuple[int, int, int], kv_type: str, block_size: int) -> None:
    case = Case(shape_of(*heads, kv_type=kv_type, block_size=block_size), 41)
    case.check(isa, np.arange(41))


@every_isa
@pytest.mark.parametrize("heads", SHAPES)
@pytest.mark.parametrize("context", [1, 15, 16, 17, 255, 256, 257, 600])
@pytest.mark.parametrize("kv_type", ["f16", "int8"])
def test_decode_attention(isa: str, heads: tuple[int, int, int], context: int, kv_type: str) -> None:
    Case(shape_of(*heads, kv_type=kv_type), context).check(isa, np.array([context - 1]))


@every_isa
@pytest.mark.parametrize("window", [1, 7, 16, 100, 256, 300])
def test_a_window_hides_what_is_before_it(isa: str, window: int) -> None:
    case = Case(shape_of(4, 1, 32, window=window), 620)
    case.check(isa, np.r_[0:20, 250:262, 300:309, 508:520, 610:620])


@every_isa
@pytest.mark.parametrize("softcap", [2.0, 50.0])
def test_soft_capped_scores(isa: str, softcap: float) -> None:
    Case(shape_of(6, 2, 64, softcap=softcap), 300).check(isa, np.arange(290, 300))


@every_isa
def test_blocks_before_the_window_may_be_gone(isa: str) -> None:
    case = Case(shape_of(4, 2, 64, window=40), 600)
    expected = case.attend(isa, np.array([599]))
    kv = case.storage(isa)
    table = case.table.copy()
    table[: (600 - 40) // 32] = -(2**31)
    assert same_bits(kv.attend(table, np.array([599]), case.q[599:600]), expected)


@every_isa
@pytest.mark.parametrize("options", [{}, {"window": 70}, {"softcap": 20.0}, {"kv_type": "f32"}, {"kv_type": "int8"}])
def test_a_query_does_not_depend_on_the_company_in_its_item(isa: str, options: dict[str, object]) -> None:
    case = Case(shape_of(6, 2, 64, **options), 530)
    positions = np.r_[0, 1, 14:19, 60, 100, 250:260, 400, 510:515, 529]
    alone = np.concatenate([case.attend(isa, positions[i : i + 1], tile=1) for i in range(len(positions))])
    for tile in range(1, 25):
        assert same_bits(case.attend(isa, positions, tile=tile), alone)
    shuffle = np.random.default_rng(0).permutation(len(positions))
    assert same_bits(case.attend(isa, positions[shuffle]), alone[shuffle])


@every_isa
@pytest.mark.parametrize("kv_type", ["f16", "f32", "int8"])
def test_later_positions_may_hold_anything(isa: str, kv_type: str) -> None:
    case = Case(shape_of(3, 1, 64, kv_type=kv_type), 300)
    whole = case.storage(isa).attend(case.table, np.arange(300), case.q)
    for written in (1, 20, 33, 255, 257):
        part = case.storage(isa, written=written)  # NaN from there on
        rows = np.arange(max(0, written - 9), written)
        assert same_bits(part.attend(case.table, rows, case.q[rows]), whole[rows])


@every_isa
@pytest.mark.parametrize("kv_type", ["f16", "int8"])
def test_a_poisoned_token_reaches_only_those_that_see_it(isa: str, kv_type: str) -> None:
    case = Case(shape_of(3, 1, 64, window=20, kv_type=kv_type), 60)
    clean = case.storage(isa).attend(case.table, np.arange(60), case.q)
    case.k[30], case.v[30] = np.nan, np.inf
    poisoned = case.storage(isa).attend(case.table, np.arange(60), case.q)
    sees = (np.arange(60) >= 30) & (np.arange(60) < 50)
    assert same_bits(poisoned[~sees], clean[~sees])
    assert np.isnan(poisoned[sees]).all()


@every_isa
@pytest.mark.parametrize("table", [[0], [0, 7], [0, -1]])
def test_a_block_table_that_does_not_hold_the_context_is_refused(isa: str, table: list[int]) -> None:
    kv = PagedKV(isa, AttentionShape(2, 1, 32), 3)
    with pytest.raises(ValueError, match="block table"):
        kv.attend(np.array(table, np.int32), np.array([40]), normal(1, 1, 64))


@every_isa
def test_values_are_rounded_to_half_as_numpy_does(isa: str) -> None:
    halves = np.arange(0, 0x7C00, 3, dtype=np.uint16).view(np.float16).astype(np.float64)
    between = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2, halves * 1.0001, [65519.0, 65520.0, 1e-9, 1e6]])
    numbers = np.concatenate([between, -between]).astype(np.float32)
    numbers = np.concatenate([numbers, np.zeros(-len(numbers) % 64, np.float32)]).reshape(-1, 64)
    shape = AttentionShape(1, 1, 64, block_size=16)
    kv = PagedKV(isa, shape, -(-len(numbers) // 16))
    kv.write(np.arange(-(-len(numbers) // 16), dtype=np.int32), 0, numbers, numbers)
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float16)
    values = kv.values.view(np.uint16).reshape(-1, 64)[: len(numbers)]
    keys = kv.keys.view(np.uint16).reshape(-1, 64, 16).transpose(0, 2, 1).reshape(-1, 64)[: len(numbers)]
    assert np.array_equal(values, expected.view(np.uint16))
    assert np.array_equal(keys, expected.view(np.uint16))


@every_isa
def test_every_half_is_read_exactly(isa: str) -> None:
    # A lone token has weight 1, so attention returns its value.
    codes = np.arange(0x10000, dtype=np.uint16)
    finite = codes[(codes & 0x7C00) != 0x7C00].view(np.float16).astype(np.float32)
    finite = finite[: len(finite) // 512 * 512].reshape(-1, 512)
    kv = PagedKV(isa, AttentionShape(1, 1, 512, block_size=16), 1)
    table = np.zeros(1, np.int32)
    for row in finite:
        kv.write(table, 0, np.zeros((1, 512), np.float32), row[None])
        out = kv.attend(table, np.zeros(1, np.int64), np.zeros((1, 512), np.float32))
        assert np.array_equal(out[0], row)


@every_isa
def test_merge_joins_chunks_and_skips_the_empty(isa: str) -> None:
    empty = np.concatenate([[-np.inf, 0.0], np.zeros(64)])
    partials = np.stack(
        [
            empty,
            np.concatenate([[3.0, 2.5], normal(1, 64)]),
            empty,
            np.concatenate([[-200.0, 7.0], normal(2, 64)]),
            np.concatenate([[5.0, 1.5], normal(3, 64)]),
        ]
    ).astype(np.float32)
    out = vector_ops.merge(isa, partials)
    kept = partials[[1, 3, 4]].astype(np.float64)
    weights = np.exp(kept[:, 0] - 5.0)
    close(out, weights @ kept[:, 2:] / (weights @ kept[:, 1]), relative=1e-6, absolute=1e-7)
    assert same_bits(vector_ops.merge(isa, partials[[1, 3, 4]]), out)


@every_isa
def test_merge_of_nothing_is_zero(isa: str) -> None:
    partials = np.zeros((3, 34), np.float32)
    partials[:, 0] = -np.inf
    assert same_bits(vector_ops.merge(isa, partials), np.zeros(32, np.float32))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_attention_of_any_shape(data: st.DataObject) -> None:
    kv_heads = data.draw(st.integers(1, 3))
    shape = shape_of(
        kv_heads * data.draw(st.integers(1, 9)),
        kv_heads,
        16 * data.draw(st.integers(1, 9)),
        block_size=16 * data.draw(st.integers(1, 5)),
        window=data.draw(st.sampled_from([0, 0, 1, 5, 33, 256, 290])),
        softcap=data.draw(st.sampled_from([0.0, 0.0, 5.0])),
        kv_type=data.draw(st.sampled_from(["f16", "f32", "int8"])),
    )
    case = Case(shape, data.draw(st.integers(1, 330)), seed=data.draw(st.integers(0, 100)))
    positions = np.array(data.draw(st.lists(st.integers(0, case.context - 1), min_size=1, max_size=6)))
    tile = data.draw(st.integers(1, 24))
    outputs = []
    for isa in ISAS:
        case.check(isa, positions, tile=tile)
        outputs.append(case.attend(isa, positions, tile=tile))
        assert same_bits(case.attend(isa, positions[-1:], tile=1)[0], outputs[-1][-1])
    if len(FUSED_ISAS) == 2:
        assert same_bits(outputs[-1], outputs[-2])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=70))
def test_instruction_sets_with_fused_multiply_add_agree(numbers: list[float]) -> None:
    x = np.array([numbers], np.float32)
    weight = normal(1, x.shape[1])
    outputs = [
        [
            vector_ops.rms_norm(isa, x, weight),
            vector_ops.glu(isa, x, x, "silu"),
            vector_ops.glu(isa, x, x, "gelu_tanh"),
            vector_ops.softcap(isa, x[0], 30.0),
        ]
        for isa in FUSED_ISAS
    ]
    for other in outputs[1:]:
        assert all(same_bits(a, b) for a, b in zip(outputs[0], other, strict=True))
