"""The storage formats of weights: names, GGUF type numbers and block sizes. Never touches weights themselves.

A tensor row is a sequence of blocks of `block_elements` weights in `block_bytes` bytes. What is inside a block
is described in `dequantize.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorageFormat:
    name: str
    gguf_type: int
    block_elements: int
    block_bytes: int

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements` weights, which must be a multiple of `block_elements`."""
        return elements // self.block_elements * self.block_bytes


FORMATS: dict[str, StorageFormat] = {
    item.name: item
    for item in (
        StorageFormat("F32", 0, 1, 4),
        StorageFormat("F16", 1, 1, 2),
        StorageFormat("BF16", 30, 1, 2),
        StorageFormat("Q4_0", 2, 32, 18),
        StorageFormat("Q4_1", 3, 32, 20),
        StorageFormat("Q5_0", 6, 32, 22),
        StorageFormat("Q5_1", 7, 32, 24),
        StorageFormat("Q8_0", 8, 32, 34),
        StorageFormat("Q2_K", 10, 256, 84),
        StorageFormat("Q3_K", 11, 256, 110),
        StorageFormat("Q4_K", 12, 256, 144),
        StorageFormat("Q5_K", 13, 256, 176),
        StorageFormat("Q6_K", 14, 256, 210),
        StorageFormat("IQ4_NL", 20, 32, 18),
    )
}

FORMATS_BY_GGUF_TYPE: dict[int, StorageFormat] = {item.gguf_type: item for item in FORMATS.values()}

# Types that exist in GGUF and that we do not read, so that a refusal can say the name a user knows.
UNSUPPORTED_GGUF_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
