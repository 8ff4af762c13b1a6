"""The block pool: exact ids, order of eviction, conservation under random operations."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.core.block_pool import BlockPool


def key(n: int) -> bytes:
    return n.to_bytes(4, "big")


def test_blocks_are_handed_out_in_order_of_their_ids() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert (pool.num_live, pool.num_cached, pool.num_free) == (3, 0, 1)


def test_worthless_blocks_come_back_after_those_never_used() -> None:
    pool = BlockPool(4)
    pool.free(pool.allocate(2))
    assert pool.allocate(4) == [2, 3, 0, 1]


def test_published_blocks_stay_findable_after_release_until_evicted() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish(block, key(1))
    pool.free([block])
    assert pool.lookup(key(1)) == block
    assert pool.allocate(2) == [1, 0]
    assert pool.lookup(key(1)) is None
    assert pool.num_evictions == 1


def test_eviction_takes_the_least_recently_released_and_free_blocks_first() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.publish(block, key(block))
    pool.free([1])
    pool.free([2, 0])
    assert pool.allocate(4) == [3, 1, 2, 0]


def test_a_touched_block_moves_to_the_end_of_the_eviction_order() -> None:
    pool = BlockPool(3)
    for block in pool.allocate(3):
        pool.publish(block, key(block))
    pool.free([0, 1, 2])
    pool.touch([0])
    assert pool.num_live == 1
    pool.free([0])
    assert pool.allocate(3) == [1, 2, 0]


def test_a_shared_block_lives_until_its_last_holder_lets_go() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.publish(0, key(7))
    pool.touch([0])
    pool.free([0])
    assert pool.num_live == 1
    pool.free([0])
    assert (pool.num_live, pool.num_cached) == (0, 1)


def test_of_two_blocks_with_equal_contents_the_first_is_found() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    pool.publish(0, key(5))
    pool.publish(1, key(5))
    assert pool.lookup(key(5)) == 0
    pool.free([1, 0])
    assert (pool.num_cached, pool.num_free) == (1, 1)
    pool.audit()


def test_retracted_blocks_are_never_found_again() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.publish(0, key(5))
    pool.retract([0])
    pool.free([0])
    assert pool.lookup(key(5)) is None
    assert pool.num_free == 1


def test_asking_for_more_than_there_is_names_the_bug() -> None:
    with pytest.raises(IndexError, match="this is a bug: 3 blocks"):
        BlockPool(2).allocate(3)


def test_clearing_the_cache_frees_every_cached_block_and_no_live_one() -> None:
    pool = BlockPool(3)
    for block in pool.allocate(3):
        pool.publish(block, key(block))
    pool.free([0, 1])
    assert pool.clear_cache() == 2
    assert (pool.num_live, pool.num_cached, pool.num_free) == (1, 0, 2)
    pool.audit()


class Model:
    """The naive twin: holders as a list of lists, no order of eviction."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.held: list[list[int]] = []

    def step(self, rng: random.Random) -> None:
        choice = rng.random()
        if choice < 0.4 and self.pool.num_available:
            blocks = self.pool.allocate(rng.randint(1, min(4, self.pool.num_available)))
            in_use = {block for holder in self.held for block in holder}
            assert not in_use & set(blocks), "a block was handed out twice"
            self.held.append(blocks)
        elif choice < 0.6 and self.held:
            for block in rng.choice(self.held):
                self.pool.publish(block, key(rng.randrange(40)))
        elif choice < 0.75:
            found = self.pool.lookup(key(rng.randrange(40)))
            if found is not None:
                self.pool.touch([found])
                self.held.append([found])
        elif self.held:
            self.pool.free(reversed(self.held.pop(rng.randrange(len(self.held)))))
        live = {block for holder in self.held for block in holder}
        assert self.pool.num_live == len(live)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32))
def test_live_cached_and_free_always_add_up(num_blocks: int, seed: int) -> None:
    pool, rng = BlockPool(num_blocks), random.Random(seed)
    model = Model(pool)
    for _ in range(200):
        model.step(rng)
        pool.audit()
