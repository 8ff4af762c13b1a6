"""Decides which blocks a request holds: admission, growth, release. Owns the block pool and the prefix cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sojourn.core.block_pool import BlockPool
from sojourn.core.prefix_cache import PrefixCache
from sojourn.core.request import Request


class KVManager:
    """Blocks of one request, from left to right:

        | hit in the prefix cache | the whole remaining prefill | one at a time while decoding |
        |<-- touched by admit --->|<--- allocated by admit ---->|<----- added by grow -------->|

    A request is admitted only if its whole remaining prefill fits, so a prompt once begun is never thrown out for
    want of its own blocks.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.prefix_cache = PrefixCache(self.pool, block_size, enabled=enable_prefix_caching)
        self.owners = [-1] * num_blocks  # sequence number of the request that computes or computed the block
        self._watermark = max(1, num_blocks // 100)  # kept free at admission, so that running requests can grow

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fits(self, request: Request, hit: Sequence[int], *, headroom: int) -> bool:
        """True if the request's remaining prefill fits beside the watermark and `headroom` further blocks.

        Blocks of the hit that are cached, not live, are taken out of what is available.
        """
        revived = sum(not self.pool.is_live(block_id) for block_id in hit)
        needed = self.num_blocks_for(request.num_tokens) - len(hit) + revived
        return needed + headroom <= self.pool.num_available

    def headroom_for(self, request: Request, num_running: int) -> int:
        """Blocks to leave for the growth of others: none if nobody runs, more for one that was thrown out before.

        Without the second rule a preempted request would come back as soon as it fits, and be thrown out a few steps
        later, over and over.
        """
        if num_running == 0:
            return 0
        return self._watermark + request.num_preemptions * num_running

    def num_missing(self, request: Request) -> int:
        """Blocks that a running request lacks for its tokens so far."""
        return max(0, self.num_blocks_for(request.num_tokens) - len(request.block_table))

    def num_freed_by(self, requests: Sequence[Request]) -> int:
        """Blocks that would become available if these requests gave theirs back: what others hold too would not."""
        held = Counter(block_id for request in requests for block_id in request.block_table)
        return sum(count == self.pool.ref_counts[block_id] for block_id, count in held.items())

    def admit(self, request: Request, hit: Sequence[int]) -> None:
        """Take references to the hit and allocate the rest of the prefill. The caller has checked `fits`."""
        self.pool.touch(hit)
        request.block_table = list(hit)
        self._allocate(request, self.num_blocks_for(request.num_tokens) - len(hit))
        request.num_computed = len(hit) * self.block_size
        self.prefix_cache.begin(request)

    def grow(self, request: Request) -> bool:
        """Make room for all of the request's tokens. False, and nothing changed, if no block is left."""
        missing = self.num_missing(request)
        if missing == 0:
            return True
        if missing > self.pool.num_available:
            return False
        self._allocate(request, missing)
        return True

    def advance(self, request: Request, num_new: int) -> None:
        """The K and V of `num_new` more tokens are in their blocks: full blocks become findable."""
        before = request.num_computed
        request.num_computed += num_new
        self.prefix_cache.publish(request, before)

    def release(self, request: Request, *, poisoned: bool = False) -> None:
        """Give all blocks back; their contents stay in the prefix cache unless they are poisoned by a NaN."""
        self.prefix_cache.end(request)
        if poisoned:
            self.pool.retract(request.block_table)
        self.pool.free(reversed(request.block_table))
        request.last_table, request.block_table = request.block_table, []
        request.num_computed = 0

    def _allocate(self, request: Request, count: int) -> None:
        blocks = self.pool.allocate(count)
        for block_id in blocks:
            self.owners[block_id] = request.sequence
        request.block_table += blocks
        request.peak_blocks = max(request.peak_blocks, len(request.block_table))

    def audit(self, running: Sequence[Request]) -> None:
        """Raise AssertionError unless the running requests hold exactly the references that the pool counts."""
        self.pool.audit()
        self.prefix_cache.audit(running)
        held = Counter(block_id for request in running for block_id in request.block_table)
        for block_id, references in enumerate(self.pool.ref_counts):
            assert references == held[block_id], (
                f"block {block_id}: {references} references, held {held[block_id]} times"
            )
        for request in running:
            assert len(set(request.block_table)) == len(request.block_table), (
                f"{request.request_id} holds a block twice"
            )
            covered = len(request.block_table) * self.block_size
            assert request.num_computed <= covered, f"{request.request_id} computed tokens beyond its blocks"
