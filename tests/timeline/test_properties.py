"""Whatever happens in whatever order: stations tile a life and nothing is negative."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sojourn.records.life import Admitted, Preempted, PrefixStop, Station, StepKind
from sojourn.timeline.account import segments, token_rows
from sojourn.timeline.causes import gaps
from sojourn.timeline.documents import request_document, step_document
from sojourn.timeline.records import ChoiceRecord, RequestRecord, RequestState
from tests.timeline.simulated import Clock, Simulation, check_prefill, check_tiles

STAMPS = (
    *("parsed_ns", "text_ns", "rendered_ns", "tokenized_ns", "submitted_ns"),
    *("first_write_ns", "last_write_ns", "ended_ns"),
)
CHOICE_STAMPS = ("received_ns", "taken_ns", "first_delta_ns", "first_text_ns", "last_delta_ns", "last_text_ns")
instants = st.integers(0, 1000)


@st.composite
def any_records(draw: st.DrawFn) -> RequestRecord:
    """Stamps in any order, present or not: a wrong clock, a lost message or a bug must not make a part negative."""
    record = RequestRecord("r", "c", "/v1/completions", draw(instants), 0.0, streamed=draw(st.booleans()))
    for name in STAMPS:
        setattr(record, name, draw(instants))
    for index in range(draw(st.integers(0, 2))):
        choice = ChoiceRecord(f"r/{index}", index, prompt_tokens=draw(st.integers(1, 20)))
        for name in CHOICE_STAMPS:
            setattr(choice, name, draw(instants))
        for _ in range(draw(st.integers(0, 3))):
            choice.admissions.append(Admitted(0, draw(instants), draw(instants), 0, PrefixStop.NO_MATCH, None, []))
        for _ in range(draw(st.integers(0, 2))):
            choice.preemptions.append(Preempted(0, draw(instants), 3, draw(st.integers(0, 25))))
        for number in range(draw(st.integers(0, 4))):
            times = [draw(instants) for _ in range(4)]
            choice.rows.extend((number * 2, *times, draw(instants) // 50, 5, StepKind.PREFILL, 5, 1))
        record.choices.append(choice)
    return record


@given(any_records(), instants)
@settings(max_examples=300, deadline=None)
def test_any_stamps_tile(record: RequestRecord, now_ns: int) -> None:
    check_tiles(record, max(now_ns, record.accepted_ns))


prompts = st.tuples(st.sampled_from([1, 2, 3]), st.integers(1, 40))  # which text it repeats, and its length
submissions = st.fixed_dictionaries(
    {
        "prompt": prompts,
        "max_tokens": st.integers(1, 12),
        "priority": st.sampled_from([0, 0, 0, -1]),
        "n": st.sampled_from([1, 1, 1, 2]),
        "streamed": st.booleans(),
    }
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), submissions),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("idle"), st.integers(1, 50)),
    ),
    min_size=1,
    max_size=25,
)


@given(events, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lives_in_a_crowded_engine_tile(events: list[tuple[str, Any]], seed: int) -> None:
    """Few blocks, few slots and a small budget, so that requests wait, stall, share and lose their blocks."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        simulation = Simulation(
            monkeypatch,
            lambda plan: rng.random() * 5,
            clock=Clock(lambda: rng.randrange(20_000)),
            num_blocks=14, block_size=4, max_num_seqs=3, budget=16,
        )  # fmt: skip
        try:
            play(simulation, events)
        finally:
            simulation.close()
        for exchange in simulation.exchanges.values():
            check_life(simulation, exchange.record)
        for step in simulation.recorder.steps()[0]:
            document = step_document(simulation.recorder, step)
            assert sum(document["kv"].values()) == 14
            assert None not in [share["id"] for share in document["requests"]]
        assert not simulation.recorder.queue()
        assert simulation.recorder.kv.states.count(2) == simulation.recorder.kv.states.count(3) == 0


def play(simulation: Simulation, events: list[tuple[str, Any]]) -> None:
    for number, (what, value) in enumerate(events):
        if what == "submit":
            options = dict(value)
            word, length = options.pop("prompt")
            simulation.submit(f"r{number}", [word + i % 7 for i in range(length)], **options)
        elif what == "step":
            for _ in range(value):
                if simulation.engine.has_unfinished():
                    simulation.step()
        elif what == "leave" and f"r{value}" in simulation.exchanges:
            simulation.leave(f"r{value}")
        elif what == "idle":
            simulation.clock.advance(value)
        for exchange in simulation.exchanges.values():
            check_tiles(exchange.record, simulation.clock.ns)  # live ones too
    simulation.run()


def check_life(simulation: Simulation, record: RequestRecord) -> None:
    assert record.state in {RequestState.FINISHED, RequestState.ABORTED}
    assert record.complete
    check_tiles(record)
    document = request_document(simulation.recorder, record, 0)
    for choice in record.choices:
        if record.state is RequestState.FINISHED:
            check_prefill(choice)
            assert len(token_rows(choice)) == choice.completion_tokens
            assert len(choice.admissions) == len(choice.preemptions) + 1
        pauses = gaps(record, choice, token_rows(choice), [])
        assert all(gap.duration_ns > 0 for gap in pauses)
        waits = choice.wait_intervals(record.ended_ns)
        assert all(wait.end_ns >= wait.since_ns for wait in waits)
    if len(record.choices) == 1 and record.choices[0].admissions:
        (choice,) = record.choices
        searched_ns = choice.admissions[0].searched_ns
        waited = sum(w.end_ns - w.since_ns for w in choice.wait_intervals(record.ended_ns) if w.since_ns < searched_ns)
        queued = sum(s.end_ns - s.start_ns for s in segments(record, 0) if s.station is Station.QUEUE)
        assert waited == queued
    parts = document["e2e"]["parts"]
    total = round(1000 * sum(parts.values())) + round(1000 * document["e2e"]["unattributed_ms"])
    assert total == round(1000 * document["e2e_ms"])


def test_a_token_row_is_found_where_its_last_position_is() -> None:
    choice = ChoiceRecord("r", 0, prompt_tokens=10)
    for number, (position, tokens) in enumerate([(0, 6), (6, 4), (10, 1), (0, 11), (11, 1), (12, 1)]):
        choice.rows.extend((number, 0, 0, 0, number, position, tokens, 0, 0, 1))
    assert token_rows(choice) == [1, 2, 4, 5]  # the fourth step only recomputed
    choice.finish_reason, choice.completion_tokens = "stop", 3
    assert token_rows(choice) == [1, 2, 4]
    assert choice.waits == array("q")
