"""int8 K and V: the native codes and scales are those of the NumPy twin, bit for bit, and what they lose is bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from sojourn.graph import kv_codes
from sojourn.native import isas
from sojourn.native.vector_ops import AttentionShape, PagedKV

Array = NDArray[np.float32]

ISAS = isas()
BLOCK = 16
HEAD_DIMS = [16, 48, 64, 80, 112, 128, 256, 512]

every_isa = pytest.mark.parametrize("isa", ISAS)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(isa: str, k: Array, v: Array, center: Array | None = None) -> tuple[Array, ...]:
    """Rows k, v [tokens, kv_heads, head_dim] as the kernels keep them: key codes and scales, value codes and scales."""
    tokens, heads, dim = k.shape
    shape = AttentionShape(heads, heads, dim, block_size=BLOCK, kv_type="int8")
    blocks = -(-tokens // BLOCK)
    kv = PagedKV(isa, shape, blocks, key_center=None if center is None else center.reshape(-1))
    kv.write(np.arange(blocks, dtype=np.int32), 0, k.reshape(tokens, -1), v.reshape(tokens, -1))
    found: list[Array] = []
    for memory, axes in ((kv.keys, (0, 3, 1, 2)), (kv.values, (0, 2, 1, 3))):
        pages = memory.reshape(blocks, heads, BLOCK * (dim + 4))
        layout = (dim, BLOCK) if memory is kv.keys else (BLOCK, dim)
        codes = pages[..., : BLOCK * dim].view(np.int8).reshape(blocks, heads, *layout)
        scales = np.ascontiguousarray(pages[..., BLOCK * dim :]).view(np.float32)
        found.append(codes.transpose(axes).reshape(-1, heads, dim)[:tokens])
        found.append(scales.transpose(0, 2, 1).reshape(-1, heads)[:tokens])
    return tuple(found)


def assert_same(isa: str, k: Array, v: Array, center: Array | None = None) -> None:
    shifted = k if center is None else k - center
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (*kv_codes.encode(kv_codes.hadamard(shifted)), *kv_codes.encode(v))
    for ours, twin in zip(stored(isa, k, v, center), expected, strict=True):
        np.testing.assert_array_equal(ours, twin)


@every_isa
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_codes_are_those_of_the_twin(isa: str, dim: int) -> None:
    k, v = normal(1, 37, 3, dim), normal(2, 37, 3, dim)
    k[:, :, 3] *= 200  # as some models have it
    assert_same(isa, k, v)
    assert_same(isa, k, v, normal(3, 3, dim) * 50)


@every_isa
@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (2, 2, 32), elements=st.floats(width=32, allow_subnormal=False)))
def test_any_row_is_coded_as_the_twin_codes_it(isa: str, rows: Array) -> None:
    assert_same(isa, rows, rows[::-1].copy())


@every_isa
def test_halves_between_codes_go_to_the_even_one(isa: str) -> None:
    row = np.zeros((1, 1, 64), np.float32)
    row[0, 0, :6] = [127, 0.5, 1.5, -2.5, 126.5, -0.5]
    _, _, codes, scales = stored(isa, row, row)
    assert codes[0, 0, :6].tolist() == [127, 0, 2, -2, 126, 0]
    assert scales[0, 0] == 1


@every_isa
def test_a_token_that_cannot_be_coded_spoils_its_own_row_only(isa: str) -> None:
    k, v = normal(4, 3, 2, 64), normal(5, 3, 2, 64)
    k[1, 0, 7], v[1, 1, 9] = np.nan, -np.inf
    _, key_scales, _, value_scales = stored(isa, k, v)
    assert np.isnan(key_scales).tolist() == [[False, False], [True, False], [False, False]]
    assert np.isnan(value_scales).tolist() == [[False, False], [False, True], [False, False]]


@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_the_hadamard_matrix_is_orthogonal_and_its_own_inverse(dim: int) -> None:
    matrix = kv_codes.hadamard(np.eye(dim, dtype=np.float32))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(dim), atol=1e-6)
    np.testing.assert_array_equal(matrix, matrix.T)
    rows = normal(6, 5, dim)
    np.testing.assert_allclose(kv_codes.hadamard(kv_codes.hadamard(rows)), rows, atol=2e-6)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (4, 32), elements=st.floats(-1e4, 1e4, width=32)))
def test_decoding_is_off_by_half_a_code_at_most(rows: Array) -> None:
    codes, scales = kv_codes.encode(rows)
    assert np.abs(codes).max(initial=0) <= 127
    gap = np.abs(kv_codes.decode(codes, scales) - rows)
    assert (gap <= scales[:, None] * 0.5001 + 2.0**-112).all()


@every_isa
def test_a_centre_changes_no_attention(isa: str) -> None:
    """It moves every score of a query alike: without a centre the codes lose more, and that is all."""
    shape = AttentionShape(4, 2, 64, scale=0.125, kv_type="int8")
    center = np.zeros((2, 64), np.float32)
    center[:, 31] = 150
    k, v, q = normal(7, 300, 128) + center.reshape(-1), normal(8, 300, 128), normal(9, 1, 256)
    table, last = np.arange(10, dtype=np.int32), np.array([299])
    outputs = []
    for kv_type, offset in (("f32", None), ("int8", center.reshape(-1)), ("int8", None)):
        kv = PagedKV(isa, AttentionShape(4, 2, 64, scale=shape.scale, kv_type=kv_type), 10, key_center=offset)
        kv.write(table, 0, k, v)
        outputs.append(kv.attend(table, last, q))
    exact, centered, plain = outputs
    assert np.abs(centered - exact).max() < 0.01 < np.abs(plain - exact).max()
