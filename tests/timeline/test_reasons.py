"""Each reason to wait, each cause of a slow token and each station that is rarely seen, provoked once."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sojourn.gc_pauses import SHORTEST_NS, GCPauses
from sojourn.records.life import Admitted, PrefixStop, Station, StepKind, WaitingReason
from sojourn.timeline.account import segments, token_rows
from sojourn.timeline.causes import Cause, gaps
from sojourn.timeline.documents import request_document
from sojourn.timeline.records import ChoiceRecord, RequestRecord
from tests.timeline.simulated import MS, Simulation, check_prefill, check_tiles


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Simulation] = []

    def make(**options: Any) -> Simulation:
        made.append(Simulation(monkeypatch, lambda plan: 10.0, **{"block_size": 4, "num_blocks": 64, **options}))
        return made[-1]

    yield make
    for simulation in made:
        simulation.close()


def reasons(simulation: Simulation, name: str) -> list[str]:
    record = simulation.exchanges[name].record
    return [str(wait.reason) for wait in record.choices[0].wait_intervals(record.ended_ns)]


def test_a_request_that_arrives_during_a_step_waits_for_it(simulate: Any) -> None:
    simulation = simulate()
    simulation.submit("a", [1, 2])
    simulation.clock.advance(7)  # what is left of the running step
    simulation.run()
    record = simulation.exchanges["a"].record
    (wait,) = record.choices[0].wait_intervals(record.ended_ns)
    assert (wait.reason, wait.end_ns - wait.since_ns) == (WaitingReason.STEP_RUNNING, 7 * MS)


def test_b73_every_slot_is_taken(simulate: Any) -> None:
    """The second one's queue is what the first one still had to do, and its reason says so."""
    simulation = simulate(max_num_seqs=1)
    simulation.submit("first", [1, 2], max_tokens=20)
    for _ in range(5):
        simulation.step()
    simulation.submit("second", [3, 4], max_tokens=2)
    began = simulation.clock.ns
    simulation.run()
    first, second = (simulation.exchanges[name].record for name in ("first", "second"))
    queued = next(stay for stay in segments(second, 0) if stay.station is Station.QUEUE)
    assert queued.end_ns - queued.start_ns == first.choices[0].last_delta_ns - began == 150 * MS
    assert reasons(simulation, "second") == ["seq_slots"]


def test_b73_the_blocks_are_taken(simulate: Any) -> None:
    simulation = simulate(num_blocks=8)
    simulation.submit("big", [1] * 24, max_tokens=6)
    simulation.step()
    simulation.submit("next", [2] * 16, max_tokens=2)
    simulation.run()
    assert reasons(simulation, "next") == ["kv_blocks"]


def test_the_budget_is_spent(simulate: Any) -> None:
    simulation = simulate(budget=8)
    simulation.submit("a", [1] * 24, max_tokens=2)
    simulation.submit("b", [2] * 24, max_tokens=2)
    simulation.run()
    assert reasons(simulation, "b") == ["token_budget"]


def test_another_computes_the_same_prefix(simulate: Any) -> None:
    simulation = simulate(budget=16)
    simulation.submit("a", [1] * 8 + [2] * 24, max_tokens=2)
    simulation.submit("b", [1] * 8 + [2] * 24 + [3], max_tokens=2)
    simulation.run()
    assert "prefix" in reasons(simulation, "b")
    (choice,) = simulation.exchanges["b"].record.choices
    assert choice.prefix_from == "a"
    assert choice.cached_tokens == choice.admissions[0].hit_tokens == 32


def test_one_of_better_priority_takes_the_slot(simulate: Any) -> None:
    """Both who lose: the one thrown out, and the one that was next in line."""
    simulation = simulate(max_num_seqs=1)
    simulation.submit("running", [1] * 6, max_tokens=6)
    simulation.step()
    simulation.step()
    simulation.submit("queued", [2] * 6, max_tokens=2)
    simulation.step()
    simulation.submit("urgent", [3] * 6, max_tokens=4, priority=-1)
    simulation.run()
    assert reasons(simulation, "queued") == ["seq_slots", "priority", "seq_slots"]
    assert "priority" in reasons(simulation, "running")
    (choice,) = simulation.exchanges["running"].record.choices
    assert len(choice.preemptions) == 1
    assert reasons(simulation, "urgent") == []


def test_b70_a_preempted_decode_is_recomputed_and_its_first_token_stays(simulate: Any) -> None:
    simulation = simulate(max_num_seqs=1, budget=8)
    simulation.submit("victim", [1] * 7, max_tokens=8)
    for _ in range(3):
        simulation.step()
    record = simulation.exchanges["victim"].record
    before = request_document(simulation.recorder, record, simulation.clock.ns)["ttft"]
    simulation.submit("urgent", [2] * 4, max_tokens=4, priority=-1)
    simulation.run()
    document = request_document(simulation.recorder, record, 0)
    assert document["ttft"] == before
    (choice,) = record.choices
    kinds = [(str(kind), position, tokens) for _, pieces in choice.work() for kind, position, tokens in pieces]
    assert kinds[:3] == [("prefill", 0, 7), ("decode", 7, 1), ("decode", 8, 1)]
    assert kinds[3:5] == [("recompute", 8, 1), ("decode", 9, 1)]  # two full blocks were still in the cache
    assert document["preemptions"][0]["lost_tokens"] == 9
    # Four steps of the other, then the one that gets it back, up to its logits.
    assert document["e2e"]["parts"]["preempted"] == pytest.approx(50, abs=0.001)
    found = gaps(record, choice, token_rows(choice), [])
    assert [(gap.index, gap.cause, gap.duration_ns // MS) for gap in found if gap.cause is not Cause.DECODE] == [
        (2, Cause.PREEMPTED, 50)
    ]
    check_tiles(record)
    check_prefill(choice)


def test_a_prompt_preempted_halfway_counts_its_tokens_once(simulate: Any) -> None:
    simulation = simulate(max_num_seqs=1, budget=8, num_blocks=32)
    simulation.submit("victim", [1, 2, 3, 4, 5] * 8, max_tokens=2)
    simulation.step()
    simulation.step()
    simulation.submit("urgent", [9] * 20, max_tokens=1, priority=-1)
    simulation.run()
    (choice,) = simulation.exchanges["victim"].record.choices
    assert len(choice.preemptions) == 1
    check_prefill(choice)
    check_tiles(simulation.exchanges["victim"].record)


def test_a_step_without_it_between_two_chunks_is_a_stall() -> None:
    """The record is made by hand: it takes a step that another prompt and the decodes fill."""
    record = RequestRecord("r", "c", "/v1/completions", 1, 0.0, parsed_ns=1, submitted_ns=1, ended_ns=100)
    choice = ChoiceRecord("r", 0, prompt_tokens=20, received_ns=1)
    record.choices.append(choice)
    choice.rows.extend((0, 10, 19, 20, 20, 0, 10, StepKind.PREFILL, 10, 1))
    choice.rows.extend((1, 21, 29, 30, 30, 10, 5, StepKind.PREFILL, 10, 1))
    choice.rows.extend((4, 60, 69, 70, 70, 15, 5, StepKind.PREFILL, 10, 1))
    choice.admissions.append(Admitted(0, 9, 10, 0, PrefixStop.NO_MATCH, None, []))
    parts = [(stay.station, stay.start_ns, stay.end_ns) for stay in segments(record, 0)]
    assert (Station.PREFILL, 10, 30) in parts
    assert (Station.STALL, 30, 60) in parts
    assert (Station.PREFILL, 60, 69) in parts


def decoding(simulation: Simulation) -> tuple[RequestRecord, ChoiceRecord, list[int]]:
    simulation.submit("a", [1, 2], max_tokens=6)
    simulation.run()
    record = simulation.exchanges["a"].record
    (choice,) = record.choices
    return record, choice, token_rows(choice)


def test_a_pause_of_the_garbage_collector_is_blamed_if_it_was_long(simulate: Any) -> None:
    record, choice, emitted = decoding(simulate())
    ends = choice.columns("end_ns")[0]
    short, long = (ends[1] + MS, ends[1] + MS + MS // 2), (ends[3] + MS, ends[3] + 3 * MS)
    found = gaps(record, choice, emitted, [short, long])
    assert [gap.cause for gap in found] == ["decode", "decode", "decode", "gc", "decode"]
    both = gaps(record, choice, emitted, [long, long])  # an engine in a thread reports the same pause once more
    assert [gap.cause for gap in both] == [gap.cause for gap in found]


def test_a_client_that_does_not_read_is_blamed_for_the_tokens_that_wait(simulate: Any) -> None:
    record, choice, emitted = decoding(simulate())
    ends = choice.columns("end_ns")[0]
    record.wrote(ends[1], ends[3])
    record.wrote(ends[3], ends[3] + MS // 2)  # a copy into a buffer
    found = gaps(record, choice, emitted, [])
    assert [gap.cause for gap in found] == ["decode", "slow_client", "slow_client", "decode", "decode"]
    assert record.blocked_ns == ends[3] - ends[1]


def test_real_pauses_are_timed() -> None:
    pauses = GCPauses()
    pauses.start()
    pauses.start()
    try:
        before = time.monotonic_ns()
        rubbish: list[Any] = [[] for _ in range(300_000)]
        for item in rubbish:
            item.append(item)
        del rubbish, item
        gc.collect()
    finally:
        pauses.stop()
        pauses.stop()
    found = pauses.take()
    assert found
    assert all(before <= start < end <= time.monotonic_ns() and end - start >= SHORTEST_NS for start, end in found)
    assert pauses.take() == []
    assert pauses._on_collection not in gc.callbacks


@pytest.mark.parametrize(
    ("prompt", "options", "stopped"),
    [
        ([1, 2], {}, PrefixStop.TOO_SHORT),
        ([1] * 9, {}, PrefixStop.NO_MATCH),
        ([5, 6, 7, 8, 9], {}, PrefixStop.ALL_MATCHED),
        ([5, 6, 7, 8, 9], {"prompt_logprobs": 0}, PrefixStop.PROMPT_LOGPROBS),
    ],
)
def test_why_the_search_for_a_prefix_ended(
    simulate: Any, prompt: list[int], options: dict[str, Any], stopped: PrefixStop
) -> None:
    simulation = simulate()
    simulation.submit("before", [5, 6, 7, 8, 9, 10], max_tokens=1)
    simulation.run()
    simulation.submit("r", prompt, max_tokens=1, **options)
    simulation.run()
    (admitted,) = simulation.exchanges["r"].record.choices[0].admissions
    assert admitted.stopped is stopped


def test_without_a_cache_and_under_another_salt_nothing_is_found(simulate: Any) -> None:
    simulation = simulate(caching=False)
    simulation.submit("r", [1] * 9, max_tokens=1)
    simulation.run()
    assert simulation.exchanges["r"].record.choices[0].admissions[0].stopped is PrefixStop.DISABLED
    simulation = simulate()
    simulation.submit("r", [1] * 9, max_tokens=1, cache_salt="s")
    simulation.run()
    assert simulation.exchanges["r"].record.choices[0].admissions[0].stopped is PrefixStop.SALTED
