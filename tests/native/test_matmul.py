"""Matrix products and the activation quantizer of every instruction set against NumPy in float64.

Error bounds, u = 2^-24, worst cases that follow from the order of operations in native/src/isa/matmul_impl.h:

- Arithmetic, against float64 on the same int8 activations: dot products are exact; each group adds one rounding in the
  product of its scales and one in each of its at most two fused multiply-adds, so |y - y64| <= roundings * u * S, where
  S is the sum of the magnitudes of all terms. Float weights: one fused multiply-add for each column.
- Activations, against the float ones: rounding moves each by at most half a step, amax / 254 of its group, hence
  |y - y_float| <= sum of |w| * step / 2, plus the above. For Gaussian activations that is 0.54% of y, RMS, whatever the
  format: the step of 32 values is 0.018 of their standard deviation, and a uniform error has step / sqrt(12).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from sojourn.native import _kernels, isas, matmul
from sojourn.weights.dequantize import dequantize
from sojourn.weights.formats import FORMATS

ISAS = isas()[::-1]  # portable first
ALL = sorted(FORMATS)
FLOATS = ("F32", "F16", "BF16")
INTEGERS = [name for name in ALL if name not in FLOATS]
U = 2.0**-24
ROWS = [*range(1, 18), 31, 64, 100]

# Offset of the scale; offset of the half that the minimums are multiples of, and the largest multiple.
SCALE = {
    "Q4_0": 0, "Q4_1": 0, "Q5_0": 0, "Q5_1": 0, "Q8_0": 0, "IQ4_NL": 0,
    "Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208,
}  # fmt: skip
MINIMUM = {"Q4_1": (2, 1), "Q5_1": (2, 1), "Q2_K": (82, 15), "Q4_K": (2, 63), "Q5_K": (2, 63)}
SHAPES = {
    32: [(1, 64), (17, 96), (40, 160), (72, 1536)],
    256: [(1, 256), (17, 256), (40, 512), (72, 1536)],
    1: [(1, 64), (17, 70), (40, 129), (72, 1536)],
}


@dataclass(frozen=True)
class Case:
    """Stored weights [n, k] and what NumPy makes of them."""

    format: str
    n: int
    k: int
    data: NDArray[np.uint8]
    weights: NDArray[np.float64]  # [n, k]
    minimums: NDArray[np.float64]  # [n, k], a bound of the magnitude of each weight's minimum

    @property
    def packed(self) -> matmul.PackedMatrix:
        return matmul.PackedMatrix(self.format, self.data, self.n, self.k)

    def operands(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """The activations that the kernel multiplies with: the quantized ones, or x itself."""
        if self.format in FLOATS:
            return x.astype(np.float64)
        q = matmul.quantize_rows("portable", x)
        groups = q.codes.reshape(len(x), -1, 32) * q.scales.astype(np.float64)[:, :, None]
        return groups.reshape(len(x), -1)[:, : self.k]

    def tolerance(self, operands: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bound of the arithmetic error, [rows, n]."""
        group = 1 if self.format in FLOATS else 16 if self.format in ("Q2_K", "Q3_K", "Q6_K") else 32
        roundings = -(-self.k // group) * (2 if self.format in MINIMUM else 1) + 3
        # |scale * code| <= |weight| + |minimum|; the float32 weights of NumPy are themselves rounded once.
        return roundings * U * (np.abs(operands) @ (np.abs(self.weights) + 2 * self.minimums).T)


def half_at(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16)


def set_half(blocks: NDArray[np.uint8], offset: int, values: NDArray[np.float16]) -> None:
    blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def case_of(name: str, n: int, k: int, blocks: NDArray[np.uint8]) -> Case:
    info = FORMATS[name]
    minimums = np.zeros((n, k))
    if name in MINIMUM:
        offset, largest = MINIMUM[name]
        per_block = np.abs(half_at(blocks, offset).astype(np.float64)) * largest  # [blocks, 1]
        minimums = np.repeat(per_block, info.block_elements, axis=1).reshape(n, k)
    weights = dequantize(name, blocks).astype(np.float64).reshape(n, k)
    return Case(name, n, k, blocks.reshape(-1), weights, minimums)


@cache
def random_case(name: str, n: int, k: int) -> Case:
    """Random codes; scales of 0.01 to 0.05 of either sign."""
    rng = np.random.default_rng(n * k)
    info = FORMATS[name]
    count = n * k // info.block_elements
    if name in FLOATS:
        values = rng.normal(0, 0.1, n * k).astype(np.float32)
        bits = values.view("<u4")
        stored = {"F32": values, "F16": values.astype("<f2"), "BF16": (bits >> 16).astype("<u2")}[name]
        return case_of(name, n, k, stored.view(np.uint8).reshape(count, -1))
    blocks = rng.integers(0, 256, (count, info.block_bytes), dtype=np.uint8)
    for offset in [SCALE[name], *[place for place, _ in [MINIMUM.get(name, (SCALE[name], 1))]]]:
        set_half(blocks, offset, (rng.uniform(0.01, 0.05, count) * rng.choice([-1, 1], count)).astype(np.float16))
    return case_of(name, n, k, blocks)


def activations(rows: int, k: int, seed: int = 5) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, k)).astype(np.float32)


def shapes(name: str) -> list[tuple[int, int]]:
    return SHAPES[FORMATS[name].block_elements]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ALL)
def test_products_are_within_the_arithmetic_bound(name: str, isa: str) -> None:
    for n, k in shapes(name):
        case = random_case(name, n, k)
        x = activations(19, k)
        operands = case.operands(x)
        error = np.abs(case.packed.matmul(isa, x) - operands @ case.weights.T)
        assert (error <= case.tolerance(operands)).all(), (n, k, (error / case.tolerance(operands)).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", INTEGERS)
def test_products_are_exact_where_float32_is(name: str, isa: str) -> None:
    """Integer activations whose groups reach 127 are their own codes; with scales of 1/2 and 1 nothing is rounded."""
    n, k = 35, 512
    rng = np.random.default_rng(11)
    info = FORMATS[name]
    blocks = rng.integers(0, 256, (n * k // info.block_elements, info.block_bytes), dtype=np.uint8)
    set_half(blocks, SCALE[name], (2.0 ** rng.integers(-1, 1, len(blocks))).astype(np.float16))
    if name in MINIMUM:
        set_half(blocks, MINIMUM[name][0], rng.integers(-4, 5, len(blocks)).astype(np.float16))
    case = case_of(name, n, k, blocks)
    x = rng.integers(-60, 61, (9, k)).astype(np.float32)
    x[:, ::32] = rng.choice([-127, 127], (9, k // 32))
    expected = x.astype(np.float64) @ case.weights.T
    assert np.abs(expected).max() < 2**22  # leaves room for the partial sums, multiples of 1/2
    assert np.array_equal(case.packed.matmul(isa, x), expected)


@pytest.mark.parametrize("name", ALL)
def test_instruction_sets_agree_in_every_bit(name: str) -> None:
    n, k = shapes(name)[-1]
    x = activations(9, k)
    packed = random_case(name, n, k).packed
    results = [packed.matmul(isa, x) for isa in ISAS]
    for result in results[1:]:
        assert np.array_equal(results[0], result)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ALL)
def test_a_row_does_not_depend_on_the_rows_beside_it(name: str, isa: str) -> None:
    """Bit-equal for every number of rows: each falls into other tiles."""
    n, k = shapes(name)[2]
    packed = random_case(name, n, k).packed
    x = activations(100, k)
    everything = packed.matmul(isa, x)
    for rows in [*range(1, 65), 100] if isa == ISAS[-1] else ROWS:
        assert np.array_equal(packed.matmul(isa, x[100 - rows :]), everything[100 - rows :]), rows


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ALL)
def test_any_range_of_panels_gives_the_same_columns(name: str, isa: str) -> None:
    n, k = shapes(name)[-1]
    packed = random_case(name, n, k).packed
    for rows in (1, 3, 9):
        x = activations(rows, k)
        everything = packed.matmul_panels(isa, x, 0, packed.panels)
        for begin in range(packed.panels):
            for end in range(begin, packed.panels + 1):
                part = packed.matmul_panels(isa, x, begin, end)
                assert np.array_equal(part[:, 16 * begin : 16 * end], everything[:, 16 * begin : 16 * end])
                assert not part[:, : 16 * begin].any()
                assert not part[:, 16 * end :].any()


@pytest.mark.parametrize("name", ALL)
def test_missing_rows_are_zero_weights(name: str) -> None:
    n, k = shapes(name)[1]
    packed = random_case(name, n, k).packed
    assert packed.panels == 2
    for isa in ISAS:
        assert not packed.matmul_panels(isa, activations(3, k), 0, 2)[:, n:].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", INTEGERS)
def test_extreme_scales(name: str, isa: str) -> None:
    """The largest and the smallest halves, and activations from 1e-20 to 1e20 in one row."""
    n, k = shapes(name)[2]
    rng = np.random.default_rng(3)
    info = FORMATS[name]
    blocks = rng.integers(0, 256, (n * k // info.block_elements, info.block_bytes), dtype=np.uint8)
    halves = np.array([65504, -65504, 6e-8, -6e-8, 6.1e-5, 0, -0.0, 1], np.float16)
    set_half(blocks, SCALE[name], rng.choice(halves, len(blocks)))
    if name in MINIMUM:
        set_half(blocks, MINIMUM[name][0], rng.choice(halves, len(blocks)))
    case = case_of(name, n, k, blocks)
    x = activations(7, k) * (10.0 ** rng.integers(-20, 20, (7, k // 32)).repeat(32, axis=1)).astype(np.float32)
    operands = case.operands(x)
    error = np.abs(case.packed.matmul(isa, x) - operands @ case.weights.T)
    assert (error <= case.tolerance(operands)).all()


@pytest.mark.parametrize("name", INTEGERS)
def test_quantized_activations_cost_at_most_half_a_step(name: str) -> None:
    n, k = shapes(name)[-1]
    case = random_case(name, n, k)
    x = activations(64, k)
    exact = x.astype(np.float64) @ case.weights.T
    error = case.packed.matmul(ISAS[-1], x) - exact
    half_steps = (np.abs(x.reshape(64, -1, 32)).max(axis=2) / 254).repeat(32, axis=1).astype(np.float64)
    # 1.0001: the float32 reciprocal of the step is itself rounded.
    bound = 1.0001 * half_steps @ np.abs(case.weights).T + case.tolerance(case.operands(x))
    assert (np.abs(error) <= bound).all()
    assert np.sqrt(np.mean(error**2) / np.mean(exact**2)) < 0.006


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K", "F16"])
def test_an_infinity_or_nan_spoils_its_own_row_only(name: str, isa: str) -> None:
    n, k = shapes(name)[-1]
    packed = random_case(name, n, k).packed
    x = activations(9, k)
    clean = packed.matmul(isa, x)
    x[2, 7], x[5, k - 1], x[6, 40] = np.nan, np.inf, -np.inf
    result = packed.matmul(isa, x)
    spoiled = [2, 5, 6]
    assert not np.isfinite(result[spoiled]).any()
    assert np.array_equal(np.delete(result, spoiled, axis=0), np.delete(clean, spoiled, axis=0))


@pytest.mark.parametrize("name", ALL)
def test_threads_do_not_change_the_packing(name: str) -> None:
    n, k = 600, 1536
    data = np.random.default_rng(1).integers(0, 64, n * k // FORMATS[name].block_elements * FORMATS[name].block_bytes)
    x = activations(1, k)
    one, many = (matmul.PackedMatrix(name, data.astype(np.uint8), n, k, threads=threads) for threads in (1, 3))
    assert np.array_equal(one.matmul(ISAS[-1], x), many.matmul(ISAS[-1], x))


# Bits per weight that a pass reads. Q2_K and Q3_K are widened, the others as in the file or at most 0.125 more.
BITS = {
    "F32": 32, "F16": 16, "BF16": 16, "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q8_0": 8.5, "IQ4_NL": 4.5,
    "Q2_K": 5.125, "Q3_K": 4.625, "Q4_K": 4.625, "Q5_K": 5.625, "Q6_K": 6.625,
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_packed_size(name: str) -> None:
    packed = random_case(name, 32, 512).packed
    assert packed.bytes * 8 == BITS[name] * 32 * 512
    assert packed.integer_activations == (name not in FLOATS)


# ---- the quantizer ----


def quantize_in_numpy(x: NDArray[np.float32]) -> matmul.QuantizedRows:
    """Twin of quantize_rows for finite x, in float32 throughout."""
    rows, columns = x.shape
    padded = np.zeros((rows, -(-columns // 64) * 64), np.float32)
    padded[:, :columns] = x
    groups = padded.reshape(rows, -1, 32)
    maximum = np.abs(groups).max(axis=2)
    maximum[maximum < np.float32(2.0**-112)] = 0
    scales = maximum / np.float32(127)
    factor = np.divide(np.float32(127), maximum, out=np.zeros_like(maximum), where=maximum > 0)
    codes = np.rint(groups * factor[:, :, None]).astype(np.int8).reshape(rows, -1)
    return matmul.QuantizedRows(codes, scales, codes.reshape(rows, -1, 16).sum(axis=2, dtype=np.int32))


def assert_same(left: matmul.QuantizedRows, right: matmul.QuantizedRows) -> None:
    assert np.array_equal(left.codes, right.codes)
    assert np.array_equal(left.scales.view(np.uint32), right.scales.view(np.uint32))
    assert np.array_equal(left.sums, right.sums)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(
    x=st.integers(1, 3).flatmap(
        lambda rows: st.sampled_from([1, 31, 32, 64, 96, 130, 512, 1100]).flatmap(
            lambda k: arrays(np.float32, (rows, k), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
        )
    )
)
def test_quantizer_equals_its_twin(isa: str, x: NDArray[np.float32]) -> None:
    assert_same(matmul.quantize_rows(isa, x), quantize_in_numpy(x))


@pytest.mark.parametrize("isa", ISAS)
def test_ties_go_to_the_even_code(isa: str) -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :7] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5]
    assert matmul.quantize_rows(isa, x).codes[0, :7].tolist() == [127, 0, 2, 2, 0, -2, -126]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("columns", [96, 600])  # 600: some groups one by one, others side by side
def test_what_cannot_be_coded_makes_its_group_nan(isa: str, columns: int, bad: float) -> None:
    x = activations(2, columns)
    x[0, 64:96] = 2.0**-120  # a group that counts as zeros beside one that is NaN
    clean = matmul.quantize_rows(isa, x)
    x[1, 40] = bad
    spoiled = matmul.quantize_rows(isa, x)
    assert np.isnan(spoiled.scales[1, 1])
    assert not spoiled.codes[1, 32:64].any()
    assert not spoiled.sums[1, 2:4].any()
    spoiled.codes[1, 32:64], spoiled.scales[1, 1] = clean.codes[1, 32:64], clean.scales[1, 1]
    spoiled.sums[1, 2:4] = clean.sums[1, 2:4]
    assert_same(spoiled, clean)


# ---- what is refused ----


def test_bad_arguments_are_refused() -> None:
    data = np.zeros(18 * 2, np.uint8)
    with pytest.raises(ValueError, match="36 bytes do not make 2 rows of 64 weights"):
        matmul.PackedMatrix("Q4_0", data, 2, 64)
    with pytest.raises(ValueError, match="do not make 1 rows of 33 weights"):
        matmul.PackedMatrix("Q4_0", data, 1, 33)
    with pytest.raises(ValueError, match="unknown storage format Q9"):
        matmul.PackedMatrix("Q9", data, 1, 64)
    packed = matmul.PackedMatrix("Q4_0", data, 1, 64)
    with pytest.raises(ValueError, match="instruction set mmx"):
        packed.matmul("mmx", activations(1, 64))
    with pytest.raises(ValueError, match=r"x must be \[rows, k\]"):
        packed.matmul(ISAS[0], activations(1, 32))
    with pytest.raises(ValueError, match="range of panels"):
        packed.matmul_panels(ISAS[0], activations(1, 64), 0, 3)
    with pytest.raises(ValueError, match="out must be"):
        _kernels.pack("Q4_0", data, 1, 64, 1).matmul(ISAS[0], activations(1, 64), 0, 1, np.zeros((1, 16), np.float32))
    with pytest.raises(ValueError, match="at least 1"):
        _kernels.pack("Q4_0", data, 0, 64, 1)
