"""What the engine counts, where a token could be counted twice: preemptions, prefix hits, lookups."""

from __future__ import annotations

import pytest

from tests.core.engines import add, make_engine, run


@pytest.mark.parametrize("caching", [False, True])
def test_each_prompt_token_counts_once_however_often_it_is_computed(caching: bool) -> None:
    engine = make_engine(num_blocks=24, block_size=4, budget=16, caching=caching)
    prompts = [[10 * request + position for position in range(1, 20 + request)] for request in range(6)]
    for request, prompt in enumerate(prompts):
        add(engine, str(request), prompt, max_tokens=20)
    run(engine)
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.recomputed_tokens > 0
    assert stats.prompt_tokens == sum(map(len, prompts))
    assert stats.generation_tokens == 6 * 20
    assert stats.cached_tokens <= stats.prefix_hits <= stats.prefix_queries


def test_a_prompt_found_in_the_cache_counts_as_cached_once() -> None:
    engine = make_engine(num_blocks=64, block_size=4)
    prompt = list(range(1, 22))
    for name in ("first", "second"):
        add(engine, name, prompt, max_tokens=2)
        run(engine)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.prefix_hits) == (42, 20, 20)
    assert (stats.prefix_queries, stats.recomputed_tokens) == (42, 0)


def test_without_a_preemption_nothing_is_recomputed() -> None:
    engine = make_engine(num_blocks=64, block_size=4, budget=8)
    add(engine, "chunked", list(range(1, 50)), max_tokens=5)
    run(engine)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.recomputed_tokens, stats.cached_tokens) == (49, 0, 0)
