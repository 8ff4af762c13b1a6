"""The scheduler: exact chunks, fairness, preemption, priorities, sharing, and 100,000 random operations."""

from __future__ import annotations

import random

import pytest

from sojourn.core.engine_core import EngineCore
from sojourn.core.request import WaitingReason
from sojourn.core.scheduler import MAX_PASSES
from sojourn.core.step_pace import StepPace
from sojourn.errors import ContextLengthExceeded, InvalidRequest
from sojourn.executor.scripted import Line, Script
from sojourn.records import FinishReason
from tests.core.engines import add, chunks_of, make_engine, run


def prompt(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 1000) for _ in range(n)]


def alone(tokens: list[int], max_tokens: int) -> list[int]:
    """The oracle: one request, no cache, no chunks, plenty of blocks."""
    engine = make_engine(num_blocks=512, budget=2048, caching=False)
    request = add(engine, "alone", tokens, max_tokens=max_tokens)
    run(engine)
    return request.output_ids


def test_the_seeds_scenario_gives_the_seeds_chunks() -> None:
    engine = make_engine(num_blocks=64, block_size=32, budget=64)
    shorts = [add(engine, f"short {i}", prompt(n, i), max_tokens=12) for i, n in enumerate((13, 16, 14))]
    for _ in range(3):
        engine.step()
    add(engine, "long", prompt(141, 9), max_tokens=6)
    run(engine)
    assert chunks_of(engine, "long") == [(0, 61), (61, 61), (122, 19), *((position, 1) for position in range(141, 146))]
    for short in shorts:
        assert len(chunks_of(engine, short.request_id)) == 12, "a short one missed a step"


def test_b24_every_running_decode_gets_its_token_in_every_step() -> None:
    engine = make_engine(num_blocks=256, budget=16, max_num_seqs=8)
    stream = add(engine, "stream", prompt(3), max_tokens=40)
    engine.step()
    for i in range(10):
        add(engine, f"flood {i}", prompt(60, i + 1), max_tokens=1)
    steps = 0
    while stream.finish_reason is None:
        before = len(stream.output_ids)
        engine.step()
        steps += 1
        assert len(stream.output_ids) == before + 1
    assert steps == 39


def test_b25_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    engine = make_engine(num_blocks=256, budget=16)
    add(engine, "long", prompt(16 * 32), max_tokens=1)
    engine.step()
    short = add(engine, "short", prompt(5, 1), max_tokens=1)
    engine.step()
    assert short.output_ids
    run(engine)
    assert len(chunks_of(engine, "long")) <= 34, "the long prompt lost more than the share of the short one"


def test_b25_short_prompts_keep_passing_a_second_long_one_that_waits_for_the_first() -> None:
    engine = make_engine(num_blocks=1024, budget=16)
    add(engine, "long", prompt(16 * 100), max_tokens=1)
    second = add(engine, "second long", prompt(16 * 10, 1), max_tokens=1)
    engine.step()
    for i in range(3 * MAX_PASSES):
        short = add(engine, f"short {i}", prompt(5, i + 2), max_tokens=1)
        engine.step()
        assert short.output_ids, f"short prompt {i} waits for the long one"
    assert second.waiting_reason is WaitingReason.TOKEN_BUDGET
    run(engine)


def test_b25_the_long_prompt_gets_half_of_the_budget_at_least() -> None:
    engine = make_engine(num_blocks=256, budget=16)
    long = add(engine, "long", prompt(200), max_tokens=1)
    engine.step()
    for i in range(100):
        add(engine, f"short {i}", prompt(4, i + 1), max_tokens=1)
    while long.finish_reason is None:
        before = long.num_computed
        engine.step()
        assert long.finish_reason is not None or long.num_computed - before >= 8


def test_b20_a_request_that_can_never_fit_is_refused_at_once() -> None:
    engine = make_engine(num_blocks=50, block_size=16)
    with pytest.raises(ContextLengthExceeded, match=r"1002 tokens.*at most 799"):
        add(engine, "huge", prompt(1002))
    add(engine, "one too many", prompt(799), max_tokens=10)
    small = add(engine, "small", prompt(10, 1), max_tokens=2)
    run(engine)
    assert len(small.output_ids) == 2


def test_b20_exactly_the_capacity_is_served_and_one_more_is_cut() -> None:
    for asked, given in ((8, 8), (9, 8), (None, 8)):
        engine = make_engine(num_blocks=4, block_size=4)
        request = add(engine, "r", prompt(8), max_tokens=asked)
        run(engine)
        assert (len(request.output_ids), request.finish_reason) == (given, FinishReason.LENGTH)


def test_b30_max_and_min_tokens_beyond_the_context_are_cut_to_it() -> None:
    engine = make_engine(num_blocks=4, block_size=4)
    request = add(engine, "r", prompt(8), max_tokens=100, min_tokens=50)
    run(engine)
    assert (len(request.output_ids), request.finish_reason) == (8, FinishReason.LENGTH)


@pytest.mark.parametrize("caching", [True, False])
def test_b21_preemption_is_invisible_in_the_output(caching: bool) -> None:
    prompts = [prompt(9 + i, i) for i in range(4)]
    engine = make_engine(num_blocks=14, block_size=4, budget=64, caching=caching)
    requests = [add(engine, f"r{i}", p, max_tokens=30) for i, p in enumerate(prompts)]
    deltas = run(engine)
    assert engine.stats().num_preemptions > 0
    for request, tokens in zip(requests, prompts, strict=True):
        assert request.output_ids == alone(tokens, 30)
        streamed = [t for d in deltas if d.request_id == request.request_id for t in d.token_ids]
        assert streamed == request.output_ids


def test_b21_seeds_and_penalties_continue_after_a_preemption() -> None:
    settings = {"temperature": 2.0, "seed": 11, "repetition_penalty": 1.5, "presence_penalty": 1.0, "max_tokens": 30}
    engine = make_engine(num_blocks=14, block_size=4)
    tight = [add(engine, f"r{i}", prompt(9 + i, i), **settings) for i in range(4)]
    run(engine)
    assert engine.stats().num_preemptions > 0
    for i, request in enumerate(tight):
        roomy = make_engine(num_blocks=256, block_size=4)
        expected = add(roomy, "r", prompt(9 + i, i), **settings)
        run(roomy)
        assert request.output_ids == expected.output_ids


def test_b22_no_preemption_treadmill() -> None:
    engine = make_engine(num_blocks=40, block_size=4, budget=32)
    decodes = [add(engine, f"d{i}", prompt(4, i), max_tokens=40) for i in range(3)]
    big = [add(engine, f"big{i}", prompt(96, 10 + i), max_tokens=8) for i in range(2)]
    run(engine)
    requests = [*decodes, *big]
    assert all(r.finish_reason is FinishReason.LENGTH for r in requests)
    assert max(r.num_preemptions for r in requests) <= 4
    computed = sum(n for record in engine.step_log for _, _, n in record.scheduled)
    assert computed <= 2 * sum(r.num_tokens for r in requests)


def test_b23_small_requests_pass_a_blocked_one_a_bounded_number_of_times() -> None:
    engine = make_engine(num_blocks=20, block_size=4, budget=64, max_num_seqs=8, caching=False)
    add(engine, "running", prompt(50), max_tokens=20)
    engine.step()
    big = add(engine, "big", prompt(40, 1), max_tokens=1)
    small = add(engine, "small", prompt(4, 2), max_tokens=1)
    engine.step()
    assert small.finish_reason is not None
    assert big.waiting_reason is WaitingReason.KV_BLOCKS
    flood = [add(engine, f"s{i}", prompt(4, 3 + i), max_tokens=1) for i in range(60)]
    while big.finish_reason is None:
        engine.step()
        engine.audit()
    assert big.num_passes == MAX_PASSES
    assert sum(r.finish_reason is not None for r in flood) < len(flood)
    run(engine)


def test_b26_a_strictly_higher_priority_displaces_the_lowest() -> None:
    engine = make_engine(max_num_seqs=1)
    low = add(engine, "low", prompt(6), max_tokens=20, priority=5)
    for _ in range(3):
        engine.step()
    high = add(engine, "high", prompt(6, 1), max_tokens=4, priority=-1)
    deltas = run(engine)
    finished = [d.request_id for d in deltas if d.finish_reason is not None]
    assert finished == ["high", "low"]
    assert low.output_ids == alone(prompt(6), 20)
    assert high.output_ids == alone(prompt(6, 1), 4)


@pytest.mark.parametrize("max_num_seqs", [1, 4])
def test_b26_a_long_prompt_does_not_wait_for_one_of_lower_priority(max_num_seqs: int) -> None:
    engine = make_engine(num_blocks=256, budget=16, max_num_seqs=max_num_seqs)
    low = add(engine, "low", prompt(400), max_tokens=4, priority=5)
    for _ in range(3):
        engine.step()
    high = add(engine, "high", prompt(100, 1), max_tokens=4)
    for _ in range(10):
        engine.step()
    assert high.finish_reason is not None
    run(engine)
    assert low.num_preemptions == 1
    assert low.output_ids == alone(prompt(400), 4)
    assert high.output_ids == alone(prompt(100, 1), 4)


def test_b26_a_long_prompt_waits_for_one_of_equal_priority() -> None:
    engine = make_engine(num_blocks=256, budget=16)
    add(engine, "first", prompt(400), max_tokens=4, priority=5)
    engine.step()
    add(engine, "second", prompt(100, 1), max_tokens=4, priority=5)
    run(engine)
    assert engine.stats().num_preemptions == 0


def test_b26_equal_priorities_never_displace_each_other() -> None:
    engine = make_engine(max_num_seqs=1)
    add(engine, "first", prompt(6), max_tokens=20, priority=3)
    engine.step()
    add(engine, "second", prompt(6, 1), max_tokens=20, priority=3)
    run(engine)
    assert engine.stats().num_preemptions == 0


@pytest.mark.parametrize("length", range(4, 52, 4))
def test_b26_nobody_is_displaced_for_a_request_that_still_has_to_wait(length: int) -> None:
    engine = make_engine(num_blocks=13, block_size=4, caching=False)
    add(engine, "equal", prompt(3, 1), max_tokens=40)
    low = [add(engine, f"low {i}", prompt(6, i + 2), max_tokens=16, priority=5) for i in range(3)]
    engine.step()
    engine.step()
    high = add(engine, "high", prompt(length, 9), max_tokens=1)
    displaced = 0
    for _ in range(3):  # nobody needs a further block in these
        engine.step()
        displaced = max(displaced, sum(r.num_preemptions for r in low))
        assert high.finish_reason is not None or not displaced
    run(engine)


def test_b26_blocks_that_the_victims_share_with_others_are_not_counted_on() -> None:
    engine = make_engine(num_blocks=16, block_size=4)
    shared = prompt(36)
    add(engine, "equal", [*shared, 7], max_tokens=12)
    engine.step()
    low = add(engine, "low", [*shared, 8], max_tokens=12, priority=5)
    engine.step()
    engine.step()
    assert low.num_cached == 36
    add(engine, "high", prompt(40, 1), max_tokens=1)
    engine.step()
    assert low.num_preemptions == 0
    run(engine)


def test_b26_no_victim_is_part_of_the_step_that_displaces_it() -> None:
    engine = make_engine(num_blocks=24, block_size=4, max_num_seqs=3, budget=24)
    rng = random.Random(4)
    for i in range(60):
        add(engine, f"r{i}", prompt(rng.randint(1, 30), i), max_tokens=rng.randint(1, 20), priority=rng.randint(-2, 2))
        engine.step()
        engine.audit()
    run(engine)
    assert engine.stats().num_preemptions > 0


def test_b28_reuse_is_every_full_block_of_the_common_prefix() -> None:
    engine = make_engine(num_blocks=64, block_size=4, budget=16)
    tokens = prompt(83)
    first = add(engine, "first", tokens, max_tokens=3)
    run(engine)
    second = add(engine, "second", tokens, max_tokens=3)
    deltas = run(engine)
    assert (first.num_cached, second.num_cached) == (0, 80)
    assert deltas[0].num_cached_tokens == 80
    assert second.output_ids == first.output_ids
    assert chunks_of(engine, "second")[0] == (80, 3)


def test_a_fully_cached_prompt_still_computes_its_last_block() -> None:
    engine = make_engine(block_size=4)
    add(engine, "first", prompt(8), max_tokens=1)
    run(engine)
    again = add(engine, "again", prompt(8), max_tokens=1)
    run(engine)
    assert again.num_cached == 4


def test_prompts_that_arrive_together_share_one_prefill() -> None:
    engine = make_engine(num_blocks=128, block_size=4, budget=32)
    shared = prompt(100)
    requests = [add(engine, f"r{i}", [*shared, 500 + i], max_tokens=2) for i in range(8)]
    engine.step()
    assert [r.waiting_reason for r in requests[1:]] == [WaitingReason.TOKEN_BUDGET] * 7
    engine.step()
    assert WaitingReason.PREFIX in {r.waiting_reason for r in requests[1:]}
    run(engine)
    assert [r.num_cached for r in requests] == [0] + [100] * 7
    for request in requests:
        assert request.output_ids == alone(request.prompt_ids, 2)


def test_waiting_for_a_shared_prefix_ends_when_its_owner_leaves() -> None:
    engine = make_engine(num_blocks=128, block_size=4, budget=32)
    add(engine, "owner", prompt(100), max_tokens=2)
    engine.step()
    other = add(engine, "other", prompt(100), max_tokens=2)
    engine.step()
    assert other.waiting_reason is WaitingReason.PREFIX
    engine.abort(["owner"])
    run(engine)
    assert other.output_ids == alone(prompt(100), 2)


def test_b89_salts_separate_the_cache() -> None:
    engine = make_engine(block_size=4)
    found = []
    for i, salt in enumerate(("A", "A", "B", "", "")):
        request = add(engine, f"r{i}", prompt(20), max_tokens=1, cache_salt=salt)
        run(engine)
        found.append(request.num_cached)
    assert found == [0, 16, 0, 0, 16]


def test_b29_accounting_drains_and_the_whole_pool_can_be_had_again() -> None:
    engine = make_engine(num_blocks=32, block_size=4, budget=32, max_num_seqs=6)
    rng = random.Random(1)
    for i in range(200):
        add(engine, f"r{i}", prompt(rng.randint(1, 60), i % 7), max_tokens=rng.randint(1, 20))
        if rng.random() < 0.3:
            engine.abort([f"r{rng.randint(0, i)}"])
        engine.step()
        engine.audit()
    run(engine)
    stats = engine.stats()
    assert stats.kv_live == 0
    assert stats.kv_cached + stats.kv_free == 32
    assert sum(stats.finished.values()) == 200
    whole = add(engine, "whole", prompt(120, 99), max_tokens=8)
    run(engine)
    assert len(whole.output_ids) == 8


@pytest.mark.parametrize("caching", [True, False])
def test_b33_an_empty_prompt_is_refused_and_nothing_else_is_hurt(caching: bool) -> None:
    engine = make_engine(caching=caching)
    other = add(engine, "other", prompt(5))
    engine.step()
    with pytest.raises(InvalidRequest, match="no tokens"):
        add(engine, "empty", [])
    run(engine)
    assert len(other.output_ids) == 8


def test_b35_cancelled_while_queued_never_runs() -> None:
    engine = make_engine(max_num_seqs=1)
    add(engine, "a", prompt(5), max_tokens=20)
    engine.step()
    add(engine, "b", prompt(5, 1))
    engine.step()
    assert engine.stats().waiting_by_reason == {"seq_slots": 1}
    computed = engine.stats().prompt_tokens
    engine.abort(["b"])
    assert engine.stats().waiting_by_reason == {}
    run(engine)
    assert engine.stats().prompt_tokens == computed
    assert engine.stats().finished == {"abort": 1, "length": 1}


def test_b36_aborting_unknown_and_finished_ids_changes_nothing() -> None:
    engine = make_engine()
    add(engine, "a", prompt(5))
    run(engine)
    before = engine.stats()
    for _ in range(3):
        engine.abort(["a", "never"])
    assert engine.stats() == before
    assert not engine.has_unfinished()


def test_b37_an_abort_in_a_long_prefill_acts_at_the_next_chunk() -> None:
    engine = make_engine(budget=16)
    add(engine, "long", prompt(200))
    engine.step()
    engine.abort(["long"])
    assert engine.stats().prompt_tokens == 16
    assert engine.stats().kv_live == 0
    assert not engine.has_unfinished()


def test_b38_one_cancel_never_hurts_another() -> None:
    engine = make_engine(num_blocks=16, block_size=4)
    requests = [add(engine, f"r{i}", prompt(8, i), max_tokens=24) for i in range(4)]
    for _ in range(5):
        engine.step()
    engine.abort(["r0", "r2"])
    run(engine)
    for i in (1, 3):
        assert requests[i].output_ids == alone(prompt(8, i), 24)


def test_b41_a_nan_ends_one_request_and_never_enters_the_cache() -> None:
    poisoned = prompt(10, 1)
    script = Script(lines=[Line(prompt=poisoned, tokens=[5] * 50, nan_at=3)])
    engine = make_engine(script=script, block_size=4)
    bad = add(engine, "bad", poisoned, max_tokens=20)
    mate = add(engine, "mate", prompt(10, 2), max_tokens=20)
    deltas = run(engine)
    assert bad.finish_reason is FinishReason.ERROR
    assert "NaN" in next(d.error for d in deltas if d.error)
    assert mate.output_ids == alone(prompt(10, 2), 20)
    assert engine.stats().finished == {"error": 1, "length": 1}
    again = add(engine, "again", poisoned, max_tokens=3)
    run(engine)
    assert (again.num_cached, again.output_ids) == (0, [5, 5, 5])


def test_prompt_only_requests_finish_without_a_token() -> None:
    engine = make_engine(budget=8)
    request = add(engine, "r", prompt(20), max_tokens=0, prompt_logprobs=1)
    deltas = run(engine)
    assert request.output_ids == []
    assert len(deltas) == 1
    assert deltas[0].finish_reason is FinishReason.LENGTH
    assert len(deltas[0].prompt_logprobs or []) == 20


def test_prompt_logprobs_are_whole_after_a_preemption_in_mid_prompt() -> None:
    engine = make_engine(num_blocks=16, block_size=4, budget=9, caching=False)
    early = add(engine, "early", prompt(3), max_tokens=40)
    engine.step()
    late = add(engine, "late", prompt(36, 1), max_tokens=2, prompt_logprobs=2)
    deltas = run(engine)
    assert early.finish_reason is FinishReason.LENGTH
    (entries,) = [d.prompt_logprobs for d in deltas if d.request_id == "late" and d.prompt_logprobs is not None]
    assert len(entries) == 36
    assert entries[0] is None
    assert all(e is not None and len(e.top_ids) == 2 for e in entries[1:])
    assert len(late.output_ids) == 2


def test_more_decodes_than_budget_are_never_admitted() -> None:
    engine = make_engine(budget=4, max_num_seqs=16)
    requests = [add(engine, f"r{i}", prompt(3, i), max_tokens=10) for i in range(12)]
    run(engine)
    assert all(len(r.output_ids) == 10 for r in requests)
    assert max(len(record.scheduled) for record in engine.step_log) <= 4


@pytest.mark.parametrize("budget", [16, 4096])
@pytest.mark.parametrize("num_blocks", [40, 512])
def test_the_same_request_gives_the_same_tokens_however_it_is_scheduled(budget: int, num_blocks: int) -> None:
    """Acceptance 6, scripted: alone, with 15 others, chunked, cold and warm, preempted."""
    prompts = [prompt(20 + 3 * i, i) for i in range(16)]
    expected = [alone(p, 24) for p in prompts]
    engine = make_engine(num_blocks=num_blocks, block_size=4, budget=budget)
    for temperature in ("cold", "warm"):
        requests = [add(engine, f"{temperature} {i}", p, max_tokens=24) for i, p in enumerate(prompts)]
        run(engine)
        assert [r.output_ids for r in requests] == expected
    assert (engine.stats().num_preemptions > 0) == (num_blocks == 40)
    assert engine.stats().prefix_hits > 0


class RandomLife:
    """Adds, aborts and steps at random with prompts over two symbols, so prefixes are shared all the time."""

    def __init__(self, seed: int, engine: EngineCore) -> None:
        self.rng, self.engine, self.count = random.Random(seed), engine, 0
        self.alive: dict[str, list[int]] = {}

    def operate(self) -> None:
        choice = self.rng.random()
        if choice < 0.22 and len(self.alive) < 24:
            self._add()
        elif choice < 0.27 and self.alive:
            victim = self.rng.choice(list(self.alive))
            del self.alive[victim]
            self.engine.abort([victim])
        else:
            for delta in self.engine.step():
                if delta.finish_reason is not None:
                    del self.alive[delta.request_id]

    def _add(self) -> None:
        rng, self.count = self.rng, self.count + 1
        length = rng.choice((1, 2, 5, 9, 17, 30, 44))
        tokens = [rng.choice((1, 2)) for _ in range(length)] if rng.random() < 0.5 else [1] * length
        request_id = f"r{self.count}"
        self.alive[request_id] = tokens
        add(
            self.engine,
            request_id,
            tokens,
            max_tokens=rng.randint(0, 16),
            priority=rng.choice((0, 0, 0, -1, 1)),
            cache_salt=rng.choice(("", "", "x")),
            prompt_logprobs=rng.choice((None,) * 9 + (0,)),
        )


class FixedPace(StepPace):
    """Always allows as many prompt tokens beside decodes as it was made with."""

    def __init__(self, prompt_tokens: int) -> None:
        super().__init__(stretch=5)
        self.prompt_tokens = prompt_tokens

    def prompt_tokens_beside(self, num_decodes: int, depth: int) -> int:
        return self.prompt_tokens


def test_chunks_shrink_beside_a_running_stream_and_only_then() -> None:
    engine = make_engine(num_blocks=256, budget=64, pace=FixedPace(8))
    add(engine, "alone", prompt(100), max_tokens=1)
    run(engine)
    assert chunks_of(engine, "alone") == [(0, 64), (64, 36)]
    stream = add(engine, "stream", prompt(3, 1), max_tokens=8)
    engine.step()
    add(engine, "beside", prompt(100, 2), max_tokens=1)
    run(engine)
    assert chunks_of(engine, "beside") == [*((8 * i, 8) for i in range(7)), (56, 44)]
    assert len(stream.output_ids) == 8


def test_b25_a_short_prompt_does_not_wait_for_a_long_one_when_chunks_are_small() -> None:
    engine = make_engine(num_blocks=512, budget=64, pace=FixedPace(8))
    add(engine, "stream", prompt(3), max_tokens=1000)
    engine.step()
    long = add(engine, "long", prompt(640, 1), max_tokens=1)
    engine.step()
    short = add(engine, "short", prompt(32, 2), max_tokens=1)
    next_long = add(engine, "next long", prompt(33, 3), max_tokens=1)
    before = long.num_computed
    for _ in range(8):
        engine.step()
        engine.audit()
    assert short.finish_reason is FinishReason.LENGTH, "half of each step is the short one's"
    assert long.num_computed - before == 8 * 4, "the other half is the long one's"
    assert next_long.waiting_reason is WaitingReason.TOKEN_BUDGET, "what fills more than half of a whole step is long"


def test_priority_displaces_the_prompt_whose_place_it_needs() -> None:
    engine = make_engine(num_blocks=512, budget=64, max_num_seqs=3, pace=FixedPace(8))
    add(engine, "stream", prompt(3), max_tokens=1000, priority=0)
    engine.step()
    long = add(engine, "long", prompt(300, 1), max_tokens=1, priority=5)
    short = add(engine, "short", prompt(30, 2), max_tokens=1, priority=5)
    engine.step()
    engine.step()
    assert (long.slot is not None, short.slot is not None) == (True, True)
    urgent = add(engine, "urgent", prompt(20, 3), max_tokens=1, priority=1)
    engine.step()
    assert urgent.slot is not None
    assert short.slot is None, "the short one held the place for short prompts"
    assert long.slot is not None, "the long one wasn't in the way"


@pytest.mark.parametrize("pace", [None, FixedPace(2)], ids=["whole steps", "paced"])
@pytest.mark.parametrize("seed", range(10))
def test_random_operations_keep_the_accounts_and_starve_nobody(seed: int, pace: StepPace | None) -> None:
    """Acceptance 5: 10 x 10,000 operations, audited after each; everything left then finishes."""
    engine = make_engine(num_blocks=16, block_size=4, max_num_seqs=5, budget=12, pace=pace)
    life = RandomLife(seed, engine)
    for _ in range(10_000):
        life.operate()
        engine.audit()
    run(engine, max_steps=5_000)
    stats = engine.stats()
    assert stats.kv_live == 0
    assert stats.num_preemptions > 0
    assert stats.prefix_hits > 0
    assert sum(stats.finished.values()) == life.count
