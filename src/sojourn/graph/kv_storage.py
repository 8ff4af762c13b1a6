"""The reference executor's KV memory: per layer one K and one V array, in float32 or as int8 codes, cut into blocks.

Owns the memory only. Which request a block belongs to is the core's business; a block holds what was written last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sojourn.graph.graph import KVShape
from sojourn.graph.kv_codes import decode, encode, hadamard

Array = NDArray[np.float32]


class KVStorage:
    """`keys[layer]` and `values[layer]` are [num_blocks, block_size, kv_heads, head_dim] in float32."""

    kv_dtype = "f32"

    def __init__(self, layers: Sequence[KVShape], num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.keys = [self._allocate(np.float32, shape.kv_heads, shape.head_dim) for shape in layers]
        self.values = [self._allocate(np.float32, shape.kv_heads, shape.head_dim) for shape in layers]

    @classmethod
    def block_bytes(cls, layers: Sequence[KVShape], block_size: int) -> int:
        """Bytes that one more block takes, over all layers, K and V."""
        return sum(shape.token_bytes(cls.kv_dtype) for shape in layers) * block_size

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size

    def write(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        """Stores rows k, v [T, kv_heads * head_dim] at `slots` [T] = block id * block_size + offset in the block."""
        for cache, rows in ((self.keys[layer], k), (self.values[layer], v)):
            self._tokens(cache)[slots] = rows.reshape(-1, *cache.shape[2:])

    def read(self, layer: int, block_table: NDArray[np.int32], start: int, stop: int) -> tuple[Array, Array]:
        """Copies of K and V at positions start to stop - 1 of the sequence that has this block table.

        Each is [positions, kv_heads, head_dim].
        """
        slots = self._slots(block_table, start, stop)
        return self._tokens(self.keys[layer])[slots], self._tokens(self.values[layer])[slots]

    def _slots(self, block_table: NDArray[np.int32], start: int, stop: int) -> NDArray[np.intp]:
        positions = np.arange(start, stop)
        return block_table[positions // self.block_size].astype(np.intp) * self.block_size + positions % self.block_size

    def _tokens(self, cache: NDArray[Any]) -> NDArray[Any]:
        return cache.reshape(self.capacity, *cache.shape[2:])

    def _allocate(self, dtype: DTypeLike, *row: int) -> NDArray[Any]:
        # np.zeros takes untouched pages from the system, so blocks that are never used cost no memory.
        return np.zeros((self.num_blocks, self.block_size, *row), dtype)


class CodedKVStorage(KVStorage):
    """The same in int8: `keys` and `values` hold codes, `key_scales` and `value_scales` [blocks, block_size, kv_heads].

    Keys are coded relative to their layer's centre (graph/key_centers.py) and turned by a Hadamard matrix. Both are
    undone on reading, so attention gets the keys it would have without codes, up to what the codes lose.
    """

    kv_dtype = "int8"

    def __init__(
        self, layers: Sequence[KVShape], num_blocks: int, block_size: int, centers: Mapping[int, Array]
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.keys = [self._allocate(np.int8, shape.kv_heads, shape.head_dim) for shape in layers]
        self.values = [self._allocate(np.int8, shape.kv_heads, shape.head_dim) for shape in layers]
        self.key_scales = [self._allocate(np.float32, shape.kv_heads) for shape in layers]
        self.value_scales = [self._allocate(np.float32, shape.kv_heads) for shape in layers]
        self._centers = [centers.get(layer, np.float32(0)) for layer in range(len(layers))]

    def write(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        row = self.keys[layer].shape[2:]
        keys = hadamard(k.reshape(-1, *row) - self._centers[layer])
        for codes, scales, rows in (
            (self.keys[layer], self.key_scales[layer], keys),
            (self.values[layer], self.value_scales[layer], v.reshape(-1, *row)),
        ):
            self._tokens(codes)[slots], self._tokens(scales)[slots] = encode(rows)

    def read(self, layer: int, block_table: NDArray[np.int32], start: int, stop: int) -> tuple[Array, Array]:
        slots = self._slots(block_table, start, stop)
        keys, values = (
            decode(self._tokens(codes)[slots], self._tokens(scales)[slots])
            for codes, scales in (
                (self.keys[layer], self.key_scales[layer]),
                (self.values[layer], self.value_scales[layer]),
            )
        )
        return hadamard(keys) + self._centers[layer], values
