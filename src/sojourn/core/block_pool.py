"""Owns the KV blocks: which are live, which are cached, which are free. Knows ids and hashes, never their contents."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from sojourn.records.life import BlockState


class BlockPool:
    """Reference-counted blocks with O(1) allocation and least-recently-used eviction.

    Every block is in exactly one state, so live + cached + free = total:

        live     held by one or more requests (ref_count > 0); may have a hash besides
        cached   held by nobody, has a hash: its contents can be hit until it is evicted
        free     held by nobody, contents worthless

    `free` blocks are used before `cached` ones, those in the order in which they were released. Callers release a
    request's blocks deepest first, so of a chain the tail is evicted before the head that more prompts share.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._free: deque[int] = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self.num_evictions = 0
        self.touched: dict[int, None] = {}  # blocks whose state may have changed; emptied by whoever reports them

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could give: free ones and, by eviction, cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_live(self) -> int:
        return self.num_blocks - self.num_available

    def state(self, block_id: int) -> BlockState:
        references = self.ref_counts[block_id]
        if references:
            return BlockState.LIVE if references == 1 else BlockState.SHARED
        return BlockState.FREE if self._hash_of[block_id] is None else BlockState.CACHED

    def is_live(self, block_id: int) -> bool:
        return self.ref_counts[block_id] > 0

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, evicting cached ones when the free ones run out.

        The caller has checked `num_available`; taking more is a bug of ours and raises IndexError.
        """
        if count > self.num_available:
            raise IndexError(f"this is a bug: {count} blocks asked for, {self.num_available} available")
        blocks = [self._free.popleft() if self._free else self._evict() for _ in range(count)]
        for block_id in blocks:
            self.ref_counts[block_id] = 1
        self.touched.update(dict.fromkeys(blocks))
        return blocks

    def free(self, block_ids: Iterable[int]) -> None:
        """Give back one reference to each block, in this order: the first one is evicted first."""
        for block_id in block_ids:
            self.touched[block_id] = None
            self.ref_counts[block_id] -= 1
            if self.ref_counts[block_id] == 0:
                if self._hash_of[block_id] is None:
                    self._free.append(block_id)
                else:
                    self._cached[block_id] = None

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block of a cache hit; a cached one becomes live again."""
        for block_id in block_ids:
            if self.ref_counts[block_id] == 0:
                del self._cached[block_id]
            self.ref_counts[block_id] += 1
            self.touched[block_id] = None

    def lookup(self, block_hash: bytes) -> int | None:
        """The block whose contents have this hash, or None. Takes no reference."""
        return self._block_of.get(block_hash)

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """Make a live, fully computed block findable. Of two with equal contents the first stays the known one."""
        if self._hash_of[block_id] is None and block_hash not in self._block_of:
            self._hash_of[block_id] = block_hash
            self._block_of[block_hash] = block_id

    def retract(self, block_ids: Iterable[int]) -> None:
        """Make live blocks unfindable again: their contents can't be trusted."""
        for block_id in block_ids:
            self._forget(block_id)

    def clear_cache(self) -> int:
        """Turn every cached block into a free one; returns how many there were."""
        count = len(self._cached)
        self.touched.update(self._cached)
        while self._cached:
            self._free.append(self._evict())
        return count

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        self._forget(block_id)
        self.num_evictions += 1
        return block_id

    def _forget(self, block_id: int) -> None:
        block_hash = self._hash_of[block_id]
        if block_hash is not None:
            del self._block_of[block_hash]
            self._hash_of[block_id] = None

    def audit(self) -> None:
        """Raise AssertionError unless every block is in exactly one state and the hash maps mirror each other."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is twice in the free list"
        assert not free & cached, "a block is free and cached at once"
        for block_id, references in enumerate(self.ref_counts):
            unheld = block_id in free or block_id in cached
            assert references >= 0, f"block {block_id} has {references} references"
            assert unheld == (references == 0), f"block {block_id} has {references} references but unheld is {unheld}"
            block_hash = self._hash_of[block_id]
            assert block_id not in cached or block_hash is not None, f"cached block {block_id} has no hash"
            assert block_id not in free or block_hash is None, f"free block {block_id} still has a hash"
            assert block_hash is None or self._block_of.get(block_hash) == block_id, (
                f"hash of {block_id} leads elsewhere"
            )
        assert len(self._block_of) == sum(h is not None for h in self._hash_of), "a hash leads to a block that has none"
