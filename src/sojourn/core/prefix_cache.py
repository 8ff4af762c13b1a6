"""Finds the blocks that prompts share. Owns the hash chains and the record of who is computing which block now."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from sojourn.core.block_pool import BlockPool
from sojourn.core.request import Request
from sojourn.records.life import PrefixStop


def root_hash(salt: str, adapter: str = "") -> bytes:
    """Where a chain begins: prompts under another salt or adapter never meet."""
    return hashlib.sha256(f"{len(salt)}:{salt}{adapter}".encode()).digest()


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of one full block: SHA-256 over its parent's hash and its tokens, so equal hashes mean equal prefixes."""
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()


class PrefixCache:
    """Maps a request's tokens to blocks already computed, and tells when to wait for one that soon will be."""

    def __init__(self, pool: BlockPool, block_size: int, *, enabled: bool = True) -> None:
        self.pool = pool
        self.block_size = block_size
        self.enabled = enabled
        self._in_flight: dict[bytes, Request] = {}  # block hash -> the running request that computes it

    def serves(self, request: Request) -> bool:
        """Whether the request may find anything. One that wants prompt logprobs needs every position computed."""
        return self.enabled and request.params.prompt_logprobs is None

    def match(self, request: Request) -> list[int]:
        """Blocks of the longest cached prefix, without taking references.

        The last token is never part of it: its logits are needed, so it is computed again.
        """
        if not self.serves(request):
            return []
        hit: list[int] = []
        for block_hash in self._hashes(request, (request.num_tokens - 1) // self.block_size):
            block_id = self.pool.lookup(block_hash)
            if block_id is None:
                break
            hit.append(block_id)
        return hit

    def why_stopped(self, request: Request, num_hit: int) -> PrefixStop:
        """Why `match` found `num_hit` blocks and no more."""
        if not self.enabled:
            return PrefixStop.DISABLED
        if not self.serves(request):
            return PrefixStop.PROMPT_LOGPROBS
        findable = (request.num_tokens - 1) // self.block_size
        if num_hit >= findable:
            return PrefixStop.ALL_MATCHED if findable else PrefixStop.TOO_SHORT
        return PrefixStop.SALTED if request.spec.cache_salt and num_hit == 0 else PrefixStop.NO_MATCH

    def awaits(self, request: Request, num_hit: int) -> bool:
        """True if another running request is computing the block that follows the `num_hit` found ones.

        Waiting for it costs less than computing it twice: this is how the choices of n > 1, and prompts that arrive
        together, share one prefill. It ends when the other request computes the block, is preempted or finishes.
        """
        if not self.serves(request):
            return False
        if num_hit >= (request.num_tokens - 1) // self.block_size:
            return False
        owner = self._in_flight.get(request.block_hashes[num_hit])
        return owner is not None and owner is not request

    def begin(self, request: Request) -> None:
        """The request starts to compute what it didn't find: whoever needs the same full blocks may wait for them."""
        if self.enabled:
            first = request.num_computed // self.block_size
            for block_hash in self._hashes(request, request.num_tokens // self.block_size)[first:]:
                self._in_flight.setdefault(block_hash, request)

    def publish(self, request: Request, previously_computed: int) -> None:
        """Make the blocks findable that became full since `previously_computed`."""
        if not self.enabled:
            return
        first, last = previously_computed // self.block_size, request.num_computed // self.block_size
        if first == last:
            return
        for index, block_hash in enumerate(self._hashes(request, last)[first:last], start=first):
            self.pool.publish(request.block_table[index], block_hash)
            self._settle(block_hash, request)

    def end(self, request: Request) -> None:
        """The request stops running: nobody need wait for its unfinished blocks."""
        if self._in_flight:
            for block_hash in request.block_hashes:
                self._settle(block_hash, request)

    def _settle(self, block_hash: bytes, owner: Request) -> None:
        if self._in_flight.get(block_hash) is owner:
            del self._in_flight[block_hash]

    def _hashes(self, request: Request, count: int) -> list[bytes]:
        """The first `count` hashes of the request's chain, computing those not known yet."""
        hashes, size = request.block_hashes, self.block_size
        while len(hashes) < count:
            parent = hashes[-1] if hashes else root_hash(request.spec.cache_salt)
            start = len(hashes) * size
            hashes.append(chain_hash(parent, request.tokens(start, start + size)))
        return hashes[:count]

    def audit(self, running: Sequence[Request]) -> None:
        """Raise AssertionError if somebody is recorded as computing blocks without running."""
        owners = set(map(id, self._in_flight.values()))
        assert owners <= set(map(id, running)), "a request that isn't running is recorded as computing blocks"
