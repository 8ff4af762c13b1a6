"""The prefix cache: exact blocks shared, exact order of eviction, hashes that depend on everything before them."""

from __future__ import annotations

from sojourn.core.prefix_cache import chain_hash, root_hash
from tests.core.engines import add, make_engine, run

FIRST = list(range(1, 14))  # three full blocks of 4 and one token


def test_a_second_prompt_shares_the_blocks_of_their_common_prefix() -> None:
    engine = make_engine(num_blocks=16, block_size=4)
    first = add(engine, "first", FIRST, max_tokens=20)
    engine.step()
    assert first.block_table == [0, 1, 2, 3]
    second = add(engine, "second", [*FIRST[:9], 99, 98], max_tokens=20)
    engine.step()
    assert second.block_table == [0, 1, 4]
    assert engine.scheduler.kv.pool.ref_counts[:6] == [2, 2, 1, 1, 1, 0]


def test_the_deepest_block_of_a_chain_is_evicted_first() -> None:
    engine = make_engine(num_blocks=4, block_size=4)
    add(engine, "first", FIRST, max_tokens=1)
    run(engine)
    pool = engine.scheduler.kv.pool
    assert (pool.num_cached, pool.num_free) == (3, 1)
    add(engine, "other", [77] * 7, max_tokens=1)  # takes the free block, then evicts block 2
    run(engine)
    again = add(engine, "again", FIRST, max_tokens=1)
    engine.step()
    assert again.num_cached == 8


def test_the_least_recently_used_chain_is_evicted_first() -> None:
    engine = make_engine(num_blocks=6, block_size=4)
    prompts = {name: [token] * 9 for name, token in (("a", 5), ("b", 6))}
    for name, tokens in prompts.items():
        add(engine, name, tokens, max_tokens=1)
        run(engine)
    add(engine, "a again", prompts["a"], max_tokens=1)
    run(engine)
    add(engine, "c", [7] * 13, max_tokens=1)  # four blocks: two free ones, then b's two
    run(engine)
    kept = add(engine, "a once more", prompts["a"], max_tokens=1)
    gone = add(engine, "b once more", prompts["b"], max_tokens=1)
    run(engine)
    assert (kept.num_cached, gone.num_cached) == (8, 0)


def test_output_tokens_are_found_by_the_next_turn() -> None:
    engine = make_engine(num_blocks=16, block_size=4)
    turn = add(engine, "turn", FIRST, max_tokens=8)
    run(engine)
    following = add(engine, "next", [*FIRST, *turn.output_ids, 5, 5], max_tokens=1)
    run(engine)
    assert following.num_cached == 20  # the last output token's K and V were never computed


def test_without_caching_nothing_is_found_and_nothing_stays() -> None:
    engine = make_engine(caching=False, block_size=4)
    for name in ("first", "second"):
        request = add(engine, name, FIRST, max_tokens=2)
        run(engine)
        assert request.num_cached == 0
    assert (engine.stats().kv_cached, engine.stats().prefix_queries) == (0, 0)


def test_prompt_logprobs_need_every_position_so_the_cache_is_not_read() -> None:
    engine = make_engine(block_size=4)
    add(engine, "first", FIRST, max_tokens=1)
    run(engine)
    request = add(engine, "second", FIRST, max_tokens=1, prompt_logprobs=0)
    deltas = run(engine)
    assert request.num_cached == 0
    assert len(deltas[0].prompt_logprobs or []) == len(FIRST)
    assert engine.stats().prefix_queries == len(FIRST), "only the first one looked anything up"


def test_hashes_depend_on_tokens_parent_salt_and_adapter() -> None:
    root = root_hash("")
    assert len({root, root_hash("a"), root_hash("", "a"), root_hash("a", "b"), root_hash("ab")}) == 5
    assert chain_hash(root, [1, 2]) == chain_hash(root, (1, 2))
    assert len({chain_hash(root, [1, 2]), chain_hash(root, [2, 1]), chain_hash(root_hash("a"), [1, 2])}) == 3
