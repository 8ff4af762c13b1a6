"""Every storage format, NumPy and native, against the `gguf` package: equal bits block for block."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from sojourn import native
from sojourn.weights.dequantize import dequantize
from sojourn.weights.formats import FORMATS, FORMATS_BY_GGUF_TYPE, UNSUPPORTED_GGUF_TYPES

ALL = sorted(FORMATS)
# Byte offset of every half-precision field of a block.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
EXTREME_HALVES = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01],
    dtype="<u2",
)


def oracle(name: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return gguf_dequantize(data, gguf.GGMLQuantizationType[name]).astype(np.float32).reshape(-1)


def assert_equal_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> None:
    """Equal bits, where any NaN equals any NaN."""
    assert left.shape == right.shape
    assert left.dtype == right.dtype == np.float32
    different = (left.view(np.uint32) != right.view(np.uint32)) & ~(np.isnan(left) & np.isnan(right))
    assert not different.any(), f"first difference at weight {np.flatnonzero(different)[0]}"


def random_blocks(name: str, count: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size=(count, FORMATS[name].block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("name", ALL)
def test_random_blocks_equal_the_gguf_package(name: str) -> None:
    data = random_blocks(name, 3000, seed=1)
    expected = oracle(name, data)
    assert_equal_bits(dequantize(name, data), expected)
    assert_equal_bits(native.dequantize(name, data), expected)


@pytest.mark.parametrize("name", sorted(HALVES))
def test_extreme_scales_equal_the_gguf_package(name: str) -> None:
    """Zeros of both signs, subnormals, the largest halves, infinities and NaNs in every combination of scale fields."""
    fields = HALVES[name]
    grid = np.stack(np.meshgrid(*[EXTREME_HALVES] * len(fields), indexing="ij"), axis=-1).reshape(-1, len(fields))
    data = random_blocks(name, len(grid) * 4, seed=2)
    for column, offset in enumerate(fields):
        data[:, offset : offset + 2] = np.tile(grid[:, column], 4).view(np.uint8).reshape(-1, 2)
    expected = oracle(name, data)
    assert_equal_bits(dequantize(name, data), expected)
    assert_equal_bits(native.dequantize(name, data), expected)


def test_every_half_and_bfloat16_converts_exactly() -> None:
    codes = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    for name in ("F16", "BF16"):
        assert_equal_bits(native.dequantize(name, codes), oracle(name, codes))
        assert_equal_bits(dequantize(name, codes), oracle(name, codes))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_numpy_and_native_agree(name: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 3))
    blocks = data.draw(arrays(np.uint8, (count, FORMATS[name].block_bytes)))
    assert_equal_bits(dequantize(name, blocks), native.dequantize(name, blocks))


@pytest.mark.parametrize("name", ["F32", "Q4_1", "Q6_K"])
def test_native_result_does_not_depend_on_threads(name: str) -> None:
    # Above the size at which a second and a third thread are worth starting, and not a multiple of either.
    data = random_blocks(name, (900_001 // FORMATS[name].block_elements) + 1, seed=3)
    alone = native.dequantize(name, data, threads=1)
    for threads in (2, 3):
        assert_equal_bits(native.dequantize(name, data, threads=threads), alone)


@pytest.mark.parametrize("name", ALL)
def test_unaligned_data_is_read_correctly(name: str) -> None:
    data = random_blocks(name, 5, seed=4).reshape(-1)
    shifted = np.concatenate([np.zeros(1, np.uint8), data])[1:]
    assert_equal_bits(native.dequantize(name, shifted), native.dequantize(name, data))


def test_block_sizes_agree_everywhere() -> None:
    assert native.formats() == {name: (item.block_elements, item.block_bytes) for name, item in FORMATS.items()}
    for name, item in FORMATS.items():
        kind = gguf.GGMLQuantizationType[name]
        assert kind.value == item.gguf_type
        assert gguf.GGML_QUANT_SIZES[kind] == (item.block_elements, item.block_bytes)


def test_every_type_of_the_gguf_package_is_read_or_refused_by_name() -> None:
    named = set(FORMATS_BY_GGUF_TYPE) | set(UNSUPPORTED_GGUF_TYPES)
    assert {kind.value for kind in gguf.GGMLQuantizationType} <= named
    assert all(UNSUPPORTED_GGUF_TYPES.get(kind.value, kind.name) == kind.name for kind in gguf.GGMLQuantizationType)


@pytest.mark.parametrize("decode", [dequantize, native.dequantize], ids=["numpy", "native"])
def test_wrong_sizes_and_names_are_refused(decode: object) -> None:
    assert callable(decode)
    with pytest.raises(ValueError, match="Q4_0"):
        decode("Q4_0", np.zeros(19, np.uint8))
    with pytest.raises(ValueError, match="Q9_9"):
        decode("Q9_9", np.zeros(32, np.uint8))
    with pytest.raises(ValueError, match="threads"):
        native.dequantize("F32", np.zeros(4, np.uint8), threads=0)
