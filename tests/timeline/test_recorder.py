"""The rings are bounded, readers miss nothing silently, and followers see each change once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from sojourn.records.life import (
    Admitted,
    Arrival,
    BlockState,
    Ended,
    EngineReport,
    PrefixStop,
    StepKind,
    StepReport,
    Wait,
    WaitingReason,
    encode_step,
)
from sojourn.timeline.documents import request_document, step_document
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.records import RequestRecord, RequestState
from tests.server.fake_engine import INFO


def step(number: int, work: Sequence[tuple[int, int, int, int]] = ()) -> bytes:
    """`work`: handle, position, tokens, kind."""
    flat = array("I", [value for row in work for value in row])
    start = 1000 * number
    return encode_step(StepReport(number, start, 1, 2, 3, 4, 5, 64, 1, 0, 1, 0, 7, 0, flat.tobytes()))


def live(recorder: Recorder, name: str, handle: int, *, accepted_ns: int = 1) -> RequestRecord:
    """A request that the engine runs."""
    record = recorder.begin(name, client_request_id="c", endpoint="/v1/completions", accepted_ns=accepted_ns)
    recorder.attach(record, [name], prompt_tokens=4, priority=0)
    recorder.arrived(Arrival(name, 2, 3, handle))
    recorder.take(EngineReport(admitted=[Admitted(handle, 4, 5, 0, PrefixStop.NO_MATCH, None, [])]))
    return record


def finish(recorder: Recorder, record: RequestRecord, handle: int) -> None:
    recorder.end(record, 200)
    recorder.take(EngineReport(ended=[Ended(handle, 9, "stop", 1, [0])]))


def test_pauses_of_both_processes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    own = [[(1, 2)], [], [(5, 6)]]
    monkeypatch.setattr(recorder._own_pauses, "take", lambda: own.pop(0))
    recorder.take(EngineReport(pauses=[(3, 4)]))
    assert sorted(recorder.pauses) == sorted(recorder.pauses) == [(1, 2), (3, 4)]
    assert sorted(recorder.pauses) == [(1, 2), (3, 4), (5, 6)]


def test_only_the_newest_requests_are_kept() -> None:
    recorder = Recorder(max_requests=3)
    for number in range(5):
        finish(recorder, live(recorder, f"r{number}", number), number)
    records, has_more = recorder.requests()
    assert [record.request_id for record in records] == ["r4", "r3", "r2"]
    assert not has_more
    assert recorder.requests(limit=2)[1]
    assert recorder.request("r1") is None


def test_a_live_request_is_kept_whatever_ends_around_it() -> None:
    recorder = Recorder(max_requests=2)
    old = live(recorder, "old", 0)
    for number in range(1, 6):
        finish(recorder, live(recorder, f"r{number}", number), number)
    assert recorder.request("old") is old
    assert [record.request_id for record in recorder.live()] == ["old"]


def test_long_lives_are_bounded_by_their_steps_together() -> None:
    recorder = Recorder(max_rows=10)
    for number in range(4):
        record = live(recorder, f"r{number}", number)
        for position in range(4):
            recorder.take(EngineReport(step=step(4 * number + position, [(number, position, 1, StepKind.DECODE)])))
        finish(recorder, record, number)
    assert [record.request_id for record in recorder.requests()[0]] == ["r3", "r2"]


def test_one_that_the_engine_never_ended_is_forgotten_with_its_ring() -> None:
    recorder = Recorder(max_requests=1)
    recorder.end(live(recorder, "lost", 0), 200)
    finish(recorder, live(recorder, "next", 1), 1)
    recorder.take(EngineReport(step=step(0, [(0, 0, 4, StepKind.PREFILL)])))
    assert recorder.request("lost") is None
    assert not recorder.queue()


def test_a_reader_that_comes_too_late_is_told_what_it_missed() -> None:
    recorder = Recorder(max_requests=3)
    cursor = recorder.finished().next
    for number in range(2):
        finish(recorder, live(recorder, f"r{number}", number), number)
    first = recorder.finished(cursor)
    assert [record.request_id for record in first.records] == ["r0", "r1"]
    assert recorder.finished(first.next) == ([], first.next, 0)
    for number in range(2, 7):
        finish(recorder, live(recorder, f"r{number}", number), number)
    late = recorder.finished(first.next)
    assert ([record.request_id for record in late.records], late.missed) == (["r4", "r5", "r6"], 2)


def test_a_record_is_complete_only_when_both_processes_are_done() -> None:
    recorder = Recorder()
    record = live(recorder, "r", 0)
    recorder.end(record, 200)
    assert record.state is RequestState.FINISHED
    assert not recorder.finished().records
    recorder.take(EngineReport(ended=[Ended(0, 9, "stop", 3, [5, 6])]))
    assert recorder.finished().records == [record]
    assert (record.choices[0].peak_blocks, record.choices[0].table) == (3, [5, 6])


@pytest.mark.parametrize(
    ("status", "left", "state"),
    [(200, False, "finished"), (200, True, "aborted"), (499, False, "aborted"), (429, False, "failed")],
)
def test_how_a_request_ended(status: int, left: bool, state: str) -> None:
    recorder = Recorder()
    record = recorder.begin("r", client_request_id="c", endpoint="/v1/completions", accepted_ns=1)
    record.client_left = left
    recorder.end(record, status)
    assert record.state == state
    assert record.state_when_left == ("receiving" if state == "aborted" else None)
    assert record.complete


def test_steps_come_newest_first_and_the_oldest_go() -> None:
    recorder = Recorder(max_steps=4)
    for number in range(6):
        recorder.take(EngineReport(step=step(number)))
    assert [found.number for found in recorder.steps()[0]] == [5, 4, 3, 2]
    assert [found.number for found in recorder.steps(since=3)[0]] == [5, 4]
    assert recorder.steps(limit=1)[1]
    assert [found.number for found in recorder.steps_numbered({0, 3, 5})] == [3, 5]


def test_a_lost_engine_ends_what_it_had_and_its_successor_counts_on() -> None:
    recorder = Recorder()
    recorder.engine_ready(INFO)
    record = live(recorder, "r", 0)
    waiting = recorder.begin("w", client_request_id="c", endpoint="/v1/completions", accepted_ns=1)
    recorder.attach(waiting, ["w"], prompt_tokens=1, priority=0)  # on its way when the engine died
    blocks = array("q", [0, BlockState.LIVE, 0])
    recorder.take(EngineReport(step=step(0, [(0, 0, 4, StepKind.PREFILL)]), blocks=blocks.tobytes()))
    follower = recorder.subscribe()
    recorder.engine_lost()
    assert recorder.changes(follower).blocks == list(range(INFO.num_kv_blocks))
    assert recorder.kv.count(BlockState.FREE) == INFO.num_kv_blocks
    for lost in (record, waiting):
        lost.error = "engine_dead"
        recorder.end(lost, 500)
        assert (lost.state, lost.complete, lost.choices[0].ended_how) == ("failed", True, "engine_lost")
    live(recorder, "after", 0)
    recorder.take(EngineReport(step=step(0, [(0, 0, 4, StepKind.PREFILL)])))
    newest, oldest = recorder.steps()[0]
    assert (newest.number, newest.shares[0].request_id) == (1, "after")
    assert (oldest.number, oldest.shares[0].request_id) == (0, "r")
    recorder.close()


def test_a_follower_sees_each_change_once() -> None:
    recorder = Recorder()
    recorder.engine_ready(INFO)
    follower = recorder.subscribe()
    assert not recorder.changes(follower)
    record = live(recorder, "r", 0)
    assert recorder.changes(follower).requests == [record]
    assert not recorder.changes(follower)
    blocks = array("q", [3, BlockState.LIVE, 0, 4, BlockState.LIVE, 0])
    recorder.take(EngineReport(step=step(0, [(0, 0, 4, StepKind.PREFILL)]), blocks=blocks.tobytes()))
    changes = recorder.changes(follower)
    assert (changes.requests, [found.number for found in changes.steps], changes.blocks) == ([record], [0], [3, 4])
    assert record.choices[0].table == [3, 4]
    finish(recorder, record, 0)
    assert recorder.changes(follower).requests == [record]
    assert not recorder.changes(follower)
    recorder.unsubscribe(follower)
    assert recorder.num_followers == 0
    recorder.close()


def test_the_queue_is_in_order_of_service() -> None:
    recorder = Recorder()
    for handle, (name, priority) in enumerate([("a", 0), ("b", 0), ("urgent", -1)]):
        record = recorder.begin(name, client_request_id="c", endpoint="/v1/completions", accepted_ns=1)
        recorder.attach(record, [name], prompt_tokens=1, priority=priority)
        recorder.arrived(Arrival(name, 2, 3, handle, loading=name == "b"))
    recorder.take(EngineReport(waits=[Wait(0, 5, WaitingReason.SEQ_SLOTS)]))
    queue = [(record.request_id, str(choice.waiting_reason)) for record, choice in recorder.queue()]
    assert queue == [("urgent", "step_running"), ("a", "seq_slots"), ("b", "loading")]


def test_several_choices_are_described_by_the_one_that_spoke_first() -> None:
    recorder = Recorder(origin_ns=0)
    record = recorder.begin("r", client_request_id="c", endpoint="/v1/completions", accepted_ns=1)
    ids = ["r/0", "r/1"]
    recorder.attach(record, ids, prompt_tokens=4, priority=0)
    for handle, name in enumerate(ids):
        recorder.arrived(Arrival(name, 2, 3, handle))
        recorder.take(EngineReport(admitted=[Admitted(handle, 4, 5, 0, PrefixStop.NO_MATCH, None, [])]))
    recorder.take(EngineReport(step=step(0, [(0, 0, 4, StepKind.PREFILL), (1, 0, 4, StepKind.PREFILL)])))
    record.choices[1].first_text_ns, record.choices[0].first_text_ns = 7, 8
    assert record.first_choice is record.choices[1]
    document: dict[str, Any] = request_document(recorder, record, 2000)
    assert [(choice["id"], choice["index"], choice["num_steps"]) for choice in document["choices"]] == [
        ("r/0", 0, 1),
        ("r/1", 1, 1),
    ]
    (found,) = recorder.steps()[0]
    shares = step_document(recorder, found)["requests"]
    assert [(share["id"], share.get("choice")) for share in shares] == [("r", None), ("r", 1)]
