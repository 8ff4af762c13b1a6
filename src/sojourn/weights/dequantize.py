"""Blocks to float32 in NumPy: the readable twin of native/src/dequantize.cpp. Never chosen silently in its place.

The order of float operations is part of the format: scale times scale first, then times the code, then the minimum.
Both twins give equal bits (the payload of a NaN excepted).

Layouts, little-endian, in the order of the bytes; `d` and `dmin` are IEEE halves, `m` too:

    Q4_0    32 weights   d, qs[16]                  d * (q - 8)            low nibbles are weights 0-15, high ones 16-31
    Q4_1    32           d, m, qs[16]               d * q + m
    Q5_0    32           d, qh[4], qs[16]           d * (q - 16)           bit i of qh is the fifth bit of weight i
    Q5_1    32           d, m, qh[4], qs[16]        d * q + m
    Q8_0    32           d, qs[32] signed           d * q
    IQ4_NL  32           d, qs[16]                  d * codebook[q]
    Q2_K    256  scales[16], qs[64], d, dmin            16 groups of 16: (d * s) * q - (dmin * m), s and m nibbles
    Q3_K    256  hmask[32], qs[64], scales[12], d       16 groups of 16: (d * (s - 32)) * q, q from -4 to 3
    Q4_K    256  d, dmin, scales[12], qs[128]           8 groups of 32: (d * s) * q - (dmin * m), six-bit s and m
    Q5_K    256  d, dmin, scales[12], qh[32], qs[128]   as Q4_K with a fifth bit
    Q6_K    256  ql[128], qh[64], scales[16] signed, d  16 groups of 16: (d * s) * (q - 32)

Formats and packing are those of ggml (the GGUF specification's quantization types).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sojourn.weights.formats import FORMATS

Blocks = NDArray[np.uint8]  # [blocks, block_bytes]
Floats = NDArray[np.float32]  # [blocks, block_elements]

_IQ4_NL_CODEBOOK = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)


def dequantize(format: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The weights in `data` (whole blocks of `format`, any shape) as float32, in one dimension.

    ValueError: an unknown format, or bytes that are not a whole number of blocks.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown storage format {format}")
    block_bytes = FORMATS[format].block_bytes
    if data.size % block_bytes:
        raise ValueError(f"{format}: {data.size} bytes are not a whole number of {block_bytes}-byte blocks")
    blocks = np.ascontiguousarray(data).reshape(-1, block_bytes)
    # Infinite and NaN scales are legal bits of a damaged file; they give NaN weights, which the engine contains later.
    with np.errstate(invalid="ignore", over="ignore"):
        return _DECODERS[format](blocks).reshape(-1)


def _half(columns: Blocks) -> Floats:
    """Two byte columns to a float column: [blocks, 2] -> [blocks, 1]."""
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def _nibbles(qs: Blocks) -> NDArray[np.uint8]:
    """[blocks, n] -> [blocks, 2n]: all low nibbles, then all high ones."""
    return np.concatenate([qs & 15, qs >> 4], axis=1)


def _fifth_bits(qh: Blocks) -> NDArray[np.uint8]:
    """[blocks, 4] -> [blocks, 32], each 0 or 16."""
    return np.unpackbits(qh, axis=1, bitorder="little") << np.uint8(4)


def _f32(blocks: Blocks) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Blocks) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Blocks) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Blocks) -> Floats:
    codes = _nibbles(blocks[:, 2:]).astype(np.float32) - 8
    return _half(blocks[:, :2]) * codes


def _q4_1(blocks: Blocks) -> Floats:
    return _half(blocks[:, :2]) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks[:, 2:4])


def _q5_0(blocks: Blocks) -> Floats:
    codes = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).astype(np.float32) - 16
    return _half(blocks[:, :2]) * codes


def _q5_1(blocks: Blocks) -> Floats:
    codes = (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])).astype(np.float32)
    return _half(blocks[:, :2]) * codes + _half(blocks[:, 2:4])


def _q8_0(blocks: Blocks) -> Floats:
    return _half(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _iq4_nl(blocks: Blocks) -> Floats:
    return _half(blocks[:, :2]) * _IQ4_NL_CODEBOOK[_nibbles(blocks[:, 2:])]


def _crumbs(qs: Blocks) -> NDArray[np.uint8]:
    """Two-bit codes: [blocks, 64] -> [blocks, 256]. Weight 128h + 32s + i is at bits 2s of byte 32h + i."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    return (qs.reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)).reshape(-1, 256)


def _q2_k(blocks: Blocks) -> Floats:
    scales, d, dmin = blocks[:, :16], _half(blocks[:, 80:82]), _half(blocks[:, 82:84])
    codes = _crumbs(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    scale = d * (scales & 15).astype(np.float32)  # [blocks, 16]
    minimum = dmin * (scales >> 4).astype(np.float32)
    return scale[:, :, None] * codes - minimum[:, :, None]


def _q3_k_scales(packed: Blocks) -> NDArray[np.int8]:
    """[blocks, 12] -> [blocks, 16], from -32 to 31: nibbles in bytes 0-7, two high bits of each in bytes 8-11."""
    low = _nibbles(packed[:, :8])
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 4, 1)
    high = (packed[:, None, 8:] >> shifts & np.uint8(3)).reshape(-1, 16)
    return (low | high << 4).astype(np.int8) - np.int8(32)


def _q3_k(blocks: Blocks) -> Floats:
    scale = _half(blocks[:, 108:110]) * _q3_k_scales(blocks[:, 96:108]).astype(np.float32)  # [blocks, 16]
    # Bit s of hmask[i] is clear where weight 32s + i lies 4 lower.
    bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    high = (blocks[:, None, :32] >> bits & 1).reshape(-1, 256)
    codes = _crumbs(blocks[:, 32:96]).astype(np.int8) - ((high ^ 1) << 2).astype(np.int8)
    return scale[:, :, None] * codes.reshape(-1, 16, 16).astype(np.float32)


def _scales_and_minimums(packed: Blocks) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Six-bit scales and minimums of Q4_K and Q5_K: [blocks, 12] -> two of [blocks, 8]."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | (first >> 6) << 4], axis=1)
    minimums = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], axis=1)
    return scales, minimums


def _nibble_groups(qs: Blocks) -> NDArray[np.uint8]:
    """[blocks, 128] -> [blocks, 8, 32]: 32 bytes hold one group in their low nibbles and the next in the high ones."""
    shifts = np.array([0, 4], dtype=np.uint8).reshape(1, 1, 2, 1)
    return (qs.reshape(-1, 4, 1, 32) >> shifts & np.uint8(15)).reshape(-1, 8, 32)


def _scaled_groups(blocks: Blocks, codes: NDArray[np.uint8]) -> Floats:
    """What Q4_K and Q5_K share: header in bytes 0-15, codes [blocks, 8, 32]."""
    scales, minimums = _scales_and_minimums(blocks[:, 4:16])
    scale = _half(blocks[:, :2]) * scales.astype(np.float32)  # [blocks, 8]
    minimum = _half(blocks[:, 2:4]) * minimums.astype(np.float32)
    return scale[:, :, None] * codes.astype(np.float32) - minimum[:, :, None]


def _q4_k(blocks: Blocks) -> Floats:
    return _scaled_groups(blocks, _nibble_groups(blocks[:, 16:]))


def _q5_k(blocks: Blocks) -> Floats:
    bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)  # bit g of qh[i] belongs to weight i of group g
    fifth = (blocks[:, None, 16:48] >> bits & np.uint8(1)) << np.uint8(4)
    return _scaled_groups(blocks, _nibble_groups(blocks[:, 48:]) | fifth)


def _q6_k(blocks: Blocks) -> Floats:
    low_shifts = np.array([0, 4], dtype=np.uint8).reshape(1, 1, 2, 1)
    low = (blocks[:, :128].reshape(-1, 2, 1, 64) >> low_shifts & np.uint8(15)).reshape(-1, 256)
    codes = (low | _crumbs(blocks[:, 128:192]) << np.uint8(4)).astype(np.float32) - 32
    scale = _half(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)  # [blocks, 16]
    return scale[:, :, None] * codes.reshape(-1, 16, 16)


_DECODERS: dict[str, Callable[[Blocks], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
}
