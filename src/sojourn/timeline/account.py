"""Divides a request's life into stations. Pure arithmetic over the stamps of one record; owns no state.

    station     process   from                                  to
    receive     front end connection's request accepted         body read, parsed and validated
    render      front end template begins (thread included)     prompt text is there
    tokenize    front end prompt text is there                  token ids are back on the event loop
    send        front end submitted (checked, admitted)         the engine's receive thread has it
    queue       engine    received                              search for its cached prefix, in the step that admits it
    prefix      engine    search begins                         blocks allocated
    prefill     engine    blocks allocated                      logits of the prompt's last token are computed
    stall       engine    end of a step with a chunk of it      start of the next such step, if others lay between
    preempted   engine    blocks taken away                     as many positions computed again as it ever had
    sample      engine    logits computed                       first token chosen
    return      both      token chosen                          the front end takes the message with it
    detokenize  front end token is there                        text may be shown: code points and stop strings decided
    stream      front end text is ready                         the kernel has it
    decode      both      first content is written              last token chosen
    finish      front end last content is written               nothing more will be sent

`stall` and `preempted` are cut out of `prefill` and `decode`. `return`, `detokenize` and `stream` count for the first
token and again for the last; in between they are part of `decode`. A token that completes no text yet prolongs
`detokenize`. The loop between two consecutive chunks belongs to `prefill`. A step can't be divided: the one that gets
a preempted request back to where it was counts as `preempted` up to its logits.

Time to first token runs from `receive` to the end of the first `stream`. A reply in one piece has no first write of its
own: its time to first token ends with `detokenize`, when a stream would have written.

Stations never overlap: one that seems to begin before its predecessor has ended begins there. What no station covers is
unattributed, so parts and remainder add up to the total exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.records.life import Station
from sojourn.timeline.records import ChoiceRecord, RequestRecord, StepRow

PROCESS = {
    Station.RECEIVE: "frontend",
    Station.RENDER: "frontend",
    Station.TOKENIZE: "frontend",
    Station.SEND: "frontend",
    Station.QUEUE: "engine",
    Station.PREFIX: "engine",
    Station.PREFILL: "engine",
    Station.STALL: "engine",
    Station.PREEMPTED: "engine",
    Station.SAMPLE: "engine",
    Station.RETURN: "both",
    Station.DETOKENIZE: "frontend",
    Station.STREAM: "frontend",
    Station.DECODE: "both",
    Station.FINISH: "frontend",
}
TTFT_STATIONS = tuple(station for station in Station if station not in {Station.DECODE, Station.FINISH})


class Segment(NamedTuple):
    """One uninterrupted stay at a station."""

    station: Station
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Account:
    """`sum(parts.values()) + unattributed_ns == total_ns`."""

    total_ns: int
    parts: dict[Station, int]  # every station that may occur, in the order of a life

    @property
    def unattributed_ns(self) -> int:
        return self.total_ns - sum(self.parts.values())


def segments(record: RequestRecord, now_ns: int) -> list[Segment]:
    """The stays of a life so far, in order. `now_ns` is where the current one of a live request ends."""
    life = _Life(record.accepted_ns, _end_ns(record, now_ns))
    if _text_stations(life, record) and _engine_stations(life, record):
        _reply_stations(life, record)
    return life.segments


def first_content_ns(record: RequestRecord) -> int:
    """When time to first token ends; 0 before that."""
    choice = record.first_choice
    if choice is None or not choice.first_text_ns:
        return 0
    return record.first_write_ns if record.streamed else choice.first_text_ns


def ttft(record: RequestRecord, parts: Sequence[Segment]) -> Account | None:
    """Of the `segments` of this record; None until the first content."""
    end_ns = first_content_ns(record)
    if not end_ns:
        return None
    end_ns = max(end_ns, record.accepted_ns)
    return Account(end_ns - record.accepted_ns, _sums(parts, TTFT_STATIONS, end_ns))


def end_to_end(record: RequestRecord, parts: Sequence[Segment], now_ns: int) -> Account:
    """Of the `segments` of this record, made with the same `now_ns`."""
    end_ns = _end_ns(record, now_ns)
    return Account(end_ns - record.accepted_ns, _sums(parts, tuple(Station), end_ns))


def token_rows(choice: ChoiceRecord) -> list[int]:
    """Indices of the steps that gave a token of the reply. A token's time is the end of its step."""
    found: list[int] = []
    goal = choice.prompt_tokens  # positions to compute for the next token
    for index, (position, tokens) in enumerate(zip(*choice.columns("position", "tokens"), strict=True)):
        if position + tokens >= goal:
            found.append(index)
            goal += 1
    # The engine may compute a token more than the reply has: it learns of a stop string a step late.
    return found[: choice.completion_tokens] if choice.finish_reason is not None else found


def tpot_ns(choice: ChoiceRecord, emitted: Sequence[int]) -> float | None:
    """Mean time between tokens; None for fewer than two."""
    if len(emitted) < 2:
        return None
    return (choice.row(emitted[-1]).end_ns - choice.row(emitted[0]).end_ns) / (len(emitted) - 1)


def _end_ns(record: RequestRecord, now_ns: int) -> int:
    return max(record.accepted_ns, record.ended_ns or now_ns)


class _Life:
    """Lays segments one after the other between two instants."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.segments: list[Segment] = []
        self.end_ns = end_ns
        self._cursor = start_ns

    def stay(self, station: Station, start_ns: int, end_ns: int) -> bool:
        """`end_ns` 0 means that it has not ended. Returns whether it has."""
        start, end = max(start_ns, self._cursor), min(end_ns or self.end_ns, self.end_ns)
        if end > start:
            last = self.segments[-1] if self.segments else None
            if last is not None and last.station is station and last.end_ns == start:
                self.segments[-1] = Segment(station, last.start_ns, end)
            else:
                self.segments.append(Segment(station, start, end))
            self._cursor = end
        return end_ns != 0

    def stay_but_for(self, station: Station, start_ns: int, end_ns: int, interruptions: Iterable[Segment]) -> bool:
        """A stay with other stations cut out of it; the interruptions are in order of their start."""
        limit = min(end_ns or self.end_ns, self.end_ns)
        for other, begin, end in interruptions:
            if begin >= limit:
                break
            self.stay(station, start_ns, begin)
            self.stay(other, max(begin, start_ns), min(end, limit))
        return self.stay(station, start_ns, end_ns)


def _text_stations(life: _Life, record: RequestRecord) -> bool:
    if not life.stay(Station.RECEIVE, record.accepted_ns, record.parsed_ns):
        return False
    if record.text_ns:  # not for a prompt given as token ids
        if not life.stay(Station.RENDER, record.text_ns, record.rendered_ns):
            return False
        if not life.stay(Station.TOKENIZE, record.rendered_ns, record.tokenized_ns):
            return False
    if not record.submitted_ns:  # being checked; or refused, and the answer says so
        life.stay(Station.FINISH, record.tokenized_ns or record.parsed_ns, record.ended_ns)
        return False
    return True


def _engine_stations(life: _Life, record: RequestRecord) -> bool:
    """Up to the first token."""
    choice = record.first_choice
    if choice is None or not life.stay(Station.SEND, record.submitted_ns, choice.received_ns):
        return False
    if not choice.admissions:
        return life.stay(Station.QUEUE, choice.received_ns, 0)
    first = choice.admissions[0]
    life.stay(Station.QUEUE, choice.received_ns, first.searched_ns)
    life.stay(Station.PREFIX, first.searched_ns, first.admitted_ns)
    emitting = _first_token_row(choice)
    computed_ns = 0 if emitting is None else choice.row(emitting).computed_ns
    interruptions = sorted([*_stalls(choice, emitting), *_preempted(choice, life.end_ns)], key=lambda each: each[1])
    if not life.stay_but_for(Station.PREFILL, first.admitted_ns, computed_ns, interruptions) or emitting is None:
        return False
    row = choice.row(emitting)
    life.stay(Station.SAMPLE, row.computed_ns, row.sampled_ns)
    return (
        life.stay(Station.RETURN, row.sampled_ns, choice.first_delta_ns)
        and life.stay(Station.DETOKENIZE, choice.first_delta_ns, choice.first_text_ns)
        and (not record.streamed or life.stay(Station.STREAM, choice.first_text_ns, record.first_write_ns))
    )


def _reply_stations(life: _Life, record: RequestRecord) -> None:
    """From the first content to the end; of several choices, to the end of the last one."""
    choice = record.first_choice
    assert choice is not None
    over = all(each.last_text_ns for each in record.choices)
    sampled_ns = max(_last_sampled(each) for each in record.choices) if over else 0
    begin = first_content_ns(record)
    if not life.stay_but_for(Station.DECODE, begin, sampled_ns, _preempted(choice, life.end_ns)):
        return
    delta_ns = max(each.last_delta_ns for each in record.choices)
    text_ns = max(each.last_text_ns for each in record.choices)
    life.stay(Station.RETURN, sampled_ns, delta_ns)
    life.stay(Station.DETOKENIZE, delta_ns, text_ns)
    # The last content of a stream may be written before its choice is known to have ended.
    if life.stay(Station.STREAM, text_ns, record.last_write_ns if record.last_write_ns >= text_ns else 0):
        life.stay(Station.FINISH, record.last_write_ns, record.ended_ns)


def _first_token_row(choice: ChoiceRecord) -> int | None:
    for index, row in enumerate(choice.step_rows()):
        if _reaches(row, choice.prompt_tokens):
            return index
    return None


def _last_sampled(choice: ChoiceRecord) -> int:
    emitted = token_rows(choice)
    return choice.row(emitted[-1] if emitted else -1).sampled_ns if choice.num_steps else choice.received_ns


def _reaches(row: StepRow, position: int) -> bool:
    return row.position + row.tokens >= position


def _stalls(choice: ChoiceRecord, emitting: int | None) -> Iterator[Segment]:
    """Between its own chunks, where it was running and others were served."""
    before: StepRow | None = None
    for index, row in enumerate(choice.step_rows()):
        if before is not None and row.step > before.step + 1 and not _lost_between(choice, before, row):
            yield Segment(Station.STALL, before.end_ns, row.start_ns)
        if index == emitting:
            return
        before = row


def _lost_between(choice: ChoiceRecord, before: StepRow, after: StepRow) -> bool:
    return any(before.start_ns < lost.at_ns < after.computed_ns for lost in choice.preemptions)


def _preempted(choice: ChoiceRecord, end_ns: int) -> Iterator[Segment]:
    """From each loss of its blocks to the logits of the step that got it back to where it was."""
    for index, lost in enumerate(choice.preemptions):
        limit = choice.preemptions[index + 1].at_ns if index + 1 < len(choice.preemptions) else end_ns
        yield Segment(Station.PREEMPTED, lost.at_ns, min(_recovered_ns(choice, index) or limit, limit))


def _recovered_ns(choice: ChoiceRecord, index: int) -> int:
    """0 if that has not happened before the next preemption."""
    lost = choice.preemptions[index]
    if index + 1 >= len(choice.admissions):
        return 0
    back = choice.admissions[index + 1]
    if back.hit_tokens >= lost.high_water:
        return back.admitted_ns
    later = (row for row in choice.step_rows() if row.computed_ns >= back.admitted_ns)
    return next((row.computed_ns for row in later if _reaches(row, lost.high_water)), 0)


def _sums(parts: Iterable[Segment], stations: Iterable[Station], end_ns: int) -> dict[Station, int]:
    sums = dict.fromkeys(stations, 0)
    for station, start, end in parts:
        if station in sums and start < end_ns:
            sums[station] += min(end, end_ns) - start
    return sums
