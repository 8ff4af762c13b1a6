"""The reference executor's KV memory: per layer one K and one V array in float32, cut into blocks.

Owns the memory only. Which request a block belongs to is the core's business; a block holds what was written last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.graph.graph import KVShape

BYTES_PER_ELEMENT = 4


class KVStorage:
    """`keys[layer]` and `values[layer]` are [num_blocks, block_size, kv_heads, head_dim]."""

    def __init__(self, layers: Sequence[KVShape], num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # np.zeros takes untouched pages from the system, so blocks that are never used cost no memory.
        self.keys = [self._allocate(shape) for shape in layers]
        self.values = [self._allocate(shape) for shape in layers]

    @staticmethod
    def block_bytes(layers: Sequence[KVShape], block_size: int) -> int:
        """Bytes that one more block takes, over all layers, K and V."""
        per_token = sum(2 * shape.kv_heads * shape.head_dim * BYTES_PER_ELEMENT for shape in layers)
        return per_token * block_size

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size

    def write(self, layer: int, slots: NDArray[np.intp], k: NDArray[np.float32], v: NDArray[np.float32]) -> None:
        """Stores rows k, v [T, kv_heads * head_dim] at `slots` [T] = block id * block_size + offset in the block."""
        for cache, rows in ((self.keys[layer], k), (self.values[layer], v)):
            tokens = cache.reshape(self.capacity, *cache.shape[2:])
            tokens[slots] = rows.reshape(-1, *cache.shape[2:])

    def read(
        self, layer: int, block_table: NDArray[np.int32], start: int, stop: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Copies of K and V at positions start to stop - 1 of the sequence that has this block table.

        Each is [positions, kv_heads, head_dim].
        """
        first = start // self.block_size
        blocks = block_table[first : -(-stop // self.block_size)]
        skip = start - first * self.block_size
        keys, values = (
            cache[blocks].reshape(-1, *cache.shape[2:])[skip : skip + stop - start]
            for cache in (self.keys[layer], self.values[layer])
        )
        return keys, values

    def _allocate(self, shape: KVShape) -> NDArray[np.float32]:
        return np.zeros((self.num_blocks, self.block_size, shape.kv_heads, shape.head_dim), np.float32)
