"""The state of every KV block as the engine last reported it. Owned by the recorder."""

from __future__ import annotations

from array import array

from sojourn.records.life import BlockState


class KVMap:
    """`owners[b]` is the handle of the request that computed block b, -1 if nobody did."""

    def __init__(self, num_blocks: int = 0, block_size: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.states = bytearray(num_blocks)  # BlockState codes; 0 is free
        self.owners = array("q", [-1]) * num_blocks

    def set(self, block: int, state: int, owner: int) -> None:
        self.states[block] = state
        self.owners[block] = owner

    def count(self, state: BlockState) -> int:
        return self.states.count(state)
