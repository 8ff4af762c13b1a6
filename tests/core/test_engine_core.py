"""The engine core: the arrays it hands down, what it refuses, what it reports."""

from __future__ import annotations

import itertools
import tracemalloc
from array import array

import numpy as np
import pytest

from sojourn.core.step_log import KEPT_STEPS, StepLog, StepRecord
from sojourn.errors import InvalidRequest
from sojourn.executor.scripted import Line, Script
from sojourn.records import FinishReason, StepPlan, StepResult
from tests.core.engines import VOCAB, add, make_engine, run


def test_a_step_is_flattened_exactly() -> None:
    engine = make_engine(num_blocks=16, block_size=4, budget=8, max_num_seqs=4)
    plans: list[StepPlan] = []
    real_run = engine.runner.run

    def spy(plan: StepPlan) -> StepResult:
        plans.append(plan)
        return real_run(plan)

    engine.runner.run = spy  # type: ignore[method-assign]
    short = add(engine, "short", [11, 12, 13], max_tokens=9)
    engine.step()
    add(engine, "long", list(range(100, 110)), max_tokens=0)
    engine.step()
    plan = plans[1]
    assert plan.token_ids.tolist() == [short.output_ids[0], *range(100, 107)]
    assert plan.positions.tolist() == [3, *range(7)]
    assert plan.cu_seqlens_q.tolist() == [0, 1, 8]
    assert plan.seq_lens.tolist() == [4, 7]
    assert plan.block_tables.tolist() == [[0, 0, 0], [1, 2, 3]]
    assert plan.samples.tolist() == [True, False]
    assert [a.prompt_ids for a in plan.admitted] == [list(range(100, 110))]
    assert {array.dtype for array in (plan.token_ids, plan.positions, plan.cu_seqlens_q, plan.seq_lens)} == {
        np.dtype(np.int32)
    }
    engine.step()
    assert plans[2].samples.tolist() == [True, False], "a prompt-only request never samples"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {VOCAB: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("allowed_token_ids", (5, VOCAB)),
        ("bad_token_ids", ((1, VOCAB),)),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_field(field: str, value: object) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        add(engine, "r", [1], **{field: value})
    with pytest.raises(InvalidRequest, match="prompt holds"):
        add(engine, "r", [1, VOCAB])
    assert not engine.has_unfinished()


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = make_engine()
    add(engine, "r", [1])
    with pytest.raises(InvalidRequest, match="already being served"):
        add(engine, "r", [1])
    run(engine)
    add(engine, "r", [1])
    run(engine)


def test_requests_without_a_seed_differ_and_with_one_repeat() -> None:
    engine = make_engine(script=None)
    flat = {"temperature": 2.0, "logit_bias": dict.fromkeys(range(1, 600), 45.0), "max_tokens": 12}
    unseeded = [add(engine, f"u{i}", [1, 2], **flat) for i in range(3)]
    seeded = [add(engine, f"s{i}", [1, 2], seed=9, **flat) for i in range(3)]
    run(engine)
    assert len({tuple(r.output_ids) for r in unseeded}) == 3
    assert len({tuple(r.output_ids) for r in seeded}) == 1


def test_every_step_is_logged_with_who_computed_what() -> None:
    engine = make_engine(budget=8)
    add(engine, "r", list(range(1, 13)), max_tokens=2)
    run(engine)
    records = list(engine.step_log)
    assert [record.scheduled for record in records] == [(("r", 0, 8),), (("r", 8, 4),), (("r", 12, 1),)]
    assert [record.step for record in records] == [0, 1, 2]
    assert all(0 <= record.compute + record.sample <= record.duration for record in records)
    assert [a.start + a.duration <= b.start for a, b in itertools.pairwise(records)] == [True, True]


def test_a_full_log_of_a_full_batch_takes_tens_of_megabytes_not_hundreds() -> None:
    request_ids = [f"chatcmpl-{i:032x}" for i in range(64)]
    log = StepLog()
    tracemalloc.start()
    try:
        for step in range(500):
            positions = array("I", [step + 300 + i for i in range(64)])
            counts = array("I", [1] * 64)
            log.append(
                StepRecord(step, step / 7, step / 9, 0.5, 0.25, tuple(request_ids), positions=positions, counts=counts)
            )
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / 500 * KEPT_STEPS < 100e6


def test_stats_count_what_happened() -> None:
    engine = make_engine(block_size=4)
    for name in ("a", "b"):
        add(engine, name, list(range(1, 11)), max_tokens=3)
        run(engine)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generation_tokens) == (20, 8, 6)
    assert stats.finished == {"length": 2}
    assert stats.kv_live + stats.kv_cached + stats.kv_free == 64
    assert (stats.num_running, stats.waiting_by_reason) == (0, {})


def test_b18_ends_and_limits() -> None:
    script = Script(lines=[Line(prompt=[1], tokens=[5, 6, 3, 7, 8]), Line(prompt=[2], tokens=[])])
    engine = make_engine(script=script)
    cases = {
        "second end id": ([1], {}, [5, 6, 3], FinishReason.STOP, None),
        "ignored": ([1], {"ignore_eos": True, "max_tokens": 8}, [5, 6, 3, 7, 8, 0, 0, 0], FinishReason.LENGTH, None),
        "stop id": ([1], {"stop_token_ids": (6,)}, [5, 6], FinishReason.STOP, 6),
        "stop id despite ignore": ([1], {"stop_token_ids": (6,), "ignore_eos": True}, [5, 6], FinishReason.STOP, 6),
        "limit": ([1], {"max_tokens": 2}, [5, 6], FinishReason.LENGTH, None),
    }
    for name, (prompt, params, expected, reason, stop_id) in cases.items():
        request = add(engine, name, prompt, eos=(0, 3), **params)
        last = run(engine)[-1]
        assert request.output_ids == expected, name
        assert (last.finish_reason, last.stop_token_id) == (reason, stop_id), name
    held = add(engine, "min_tokens", [2], min_tokens=4, max_tokens=9, eos=(0, 3))
    run(engine)
    assert len(held.output_ids) == 5
    assert held.output_ids[-1] == 0
    assert not {0, 3} & set(held.output_ids[:-1])
