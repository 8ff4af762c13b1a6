"""The two records that every view is drawn from: one per request, one per step. Owned by the recorder.

Stamps are time.monotonic_ns(), 0 where the event has not happened. Nothing is derived here: `account` divides a life
into stations, `causes` explains gaps between tokens, `documents` makes JSON.
"""

from __future__ import annotations

import enum
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sojourn.records import SamplingParams
from sojourn.records.life import Admitted, Preempted, StepKind, StepReport, WaitingReason

BLOCKED_NS = 1_000_000  # a write that takes longer waited for the client; otherwise it is a copy into a buffer
REASONS = tuple(WaitingReason)  # by the code that `ChoiceRecord.waits` holds
NOT_WAITING = -1


class RequestState(enum.StrEnum):
    RECEIVING = "receiving"  # in the front end: body, template, tokenizer
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"  # the client left
    FAILED = "failed"  # refused or ended by an error; `status` and `error` say more

    @property
    def is_final(self) -> bool:
        return self in {RequestState.FINISHED, RequestState.ABORTED, RequestState.FAILED}


class StepRow(NamedTuple):
    """One step's work for one choice."""

    step: int
    start_ns: int
    computed_ns: int
    sampled_ns: int
    end_ns: int
    position: int  # the first one computed
    tokens: int
    kind: StepKind | int
    batch_tokens: int
    batch_requests: int


ROW = len(StepRow._fields)


class WaitInterval(NamedTuple):
    since_ns: int
    end_ns: int  # 0 while it lasts
    reason: WaitingReason


@dataclass(slots=True, eq=False)
class ChoiceRecord:
    """One choice of one prompt, which is one request to the engine."""

    engine_id: str
    index: int  # as in the reply
    prompt_tokens: int
    handle: int = -1  # what the engine calls it; -1 until it has arrived there
    received_ns: int = 0  # by the engine's receive thread
    taken_ns: int = 0  # by its loop
    waiting_reason: WaitingReason | None = None  # as of now; None unless it waits in the engine
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    prefix_from: str | None = None  # record id of the request that computed the last block of the first hit
    first_delta_ns: int = 0  # first token back in the front end
    first_text_ns: int = 0  # first text that may be shown
    last_delta_ns: int = 0
    last_text_ns: int = 0  # its last text is ready
    completion_tokens: int = 0
    finish_reason: str | None = None  # of the reply: "stop", "length"
    ended_ns: int = 0  # the engine released it
    ended_how: str | None = None  # the engine's own reason
    peak_blocks: int = 0
    table: list[int] = field(default_factory=list)  # block ids, while live and at the end
    text: list[str] | None = None  # only with --record-text
    admissions: list[Admitted] = field(default_factory=list)
    preemptions: list[Preempted] = field(default_factory=list)
    waits: array[int] = field(
        default_factory=lambda: array("q")
    )  # an instant, and the code of what it waits for from then on
    rows: array[int] = field(default_factory=lambda: array("q"))  # StepRows, flat
    # Steps that held prompt work of others: index of the row -> (record id, ...).
    prefilled_by: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return len(self.rows) // ROW

    def row(self, index: int) -> StepRow:
        """Negative indices count from the end, as in a list."""
        first = index * ROW if index >= 0 else len(self.rows) + index * ROW
        return StepRow(*self.rows[first : first + ROW])

    def columns(self, *names: str) -> list[array[int]]:
        """Of all step rows. Much cheaper than the rows themselves."""
        return [self.rows[StepRow._fields.index(name) :: ROW] for name in names]

    def step_rows(self) -> Iterator[StepRow]:
        rows = self.rows
        for first in range(0, len(rows), ROW):
            yield StepRow(*rows[first : first + ROW])

    def work(self) -> Iterator[tuple[StepRow, list[tuple[StepKind, int, int]]]]:
        """What each step computed: kind, first position, tokens. Two pieces where recomputation went on beyond what
        had been lost, so that the pieces of kind `prefill` and the cached tokens add up to the prompt."""
        for row in self.step_rows():
            kind, end = StepKind(row.kind), row.position + row.tokens
            lost = max((each.high_water for each in self.preemptions if each.at_ns < row.computed_ns), default=0)
            if kind is StepKind.RECOMPUTE and row.position < lost < end:
                rest = StepKind.PREFILL if lost < self.prompt_tokens else StepKind.DECODE
                yield row, [(kind, row.position, lost - row.position), (rest, lost, end - lost)]
            else:
                yield row, [(kind, row.position, row.tokens)]

    def wait_intervals(self, over_ns: int) -> list[WaitInterval]:
        """When it waited for what; neighbours with the same reason are one. `over_ns`: end of the request, or 0."""
        found: list[WaitInterval] = []
        starts, codes = self.waits[::2], self.waits[1::2]
        for index, (since_ns, code) in enumerate(zip(starts, codes, strict=True)):
            last = index + 1 == len(starts)
            end_ns = (self.ended_ns or over_ns) if last else starts[index + 1]
            if code == NOT_WAITING or 0 < end_ns <= since_ns:
                continue
            if found and found[-1].reason is REASONS[code] and found[-1].end_ns == since_ns:
                since_ns = found.pop().since_ns
            found.append(WaitInterval(since_ns, end_ns, REASONS[code]))
        return found

    @property
    def waiting_since_ns(self) -> int:
        """When its current wait began: its arrival, or its latest preemption."""
        return self.preemptions[-1].at_ns if self.preemptions else self.received_ns


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One HTTP request for generation, from the accepted connection to the last byte."""

    request_id: str  # the `id` of the reply
    client_request_id: str  # x-request-id
    endpoint: str
    accepted_ns: int
    received_at: float  # Unix seconds
    state: RequestState = RequestState.RECEIVING
    state_when_left: RequestState | None = None  # of an aborted one
    model: str = ""
    priority: int = 0
    streamed: bool = False
    status: int = 0  # of HTTP; 499: the client left before any
    error: str | None = None  # code of the error that ended it
    client_left: bool = False  # before the end of the reply
    traceparent: str | None = None  # the client's W3C trace context, like the next
    tracestate: str | None = None
    params: SamplingParams | None = None  # of all choices
    parsed_ns: int = 0  # body read and validated
    text_ns: int = 0  # template or tokenizer began
    rendered_ns: int = 0  # template done
    tokenized_ns: int = 0
    submitted_ns: int = 0
    first_write_ns: int = 0  # first byte of content is with the kernel
    last_write_ns: int = 0  # latest byte of content
    ended_ns: int = 0  # nothing more will be sent
    num_writes: int = 0
    blocked_ns: int = 0  # in writes that waited for the client to read
    blocked: array[int] = field(default_factory=lambda: array("q"))  # start and end of each such write, alternating
    keeps_text: bool = False
    prompt_text: str | None = None  # only with --record-text
    choices: list[ChoiceRecord] = field(default_factory=list)
    complete: bool = False  # ended, and the engine has reported the end of each choice

    @property
    def first_choice(self) -> ChoiceRecord | None:
        """The choice that gave the first content; before there is any, the one that was admitted first."""
        shown = [choice for choice in self.choices if choice.first_text_ns]
        if shown:
            return min(shown, key=lambda choice: choice.first_text_ns)
        begun = [choice for choice in self.choices if choice.admissions]
        if begun:
            return min(begun, key=lambda choice: choice.admissions[0].admitted_ns)
        return self.choices[0] if self.choices else None

    def begin_text(self) -> None:
        """Template or tokenizer begins. Of several prompts the first begins and the last ends."""
        self.text_ns = self.text_ns or time.monotonic_ns()

    def end_render(self, text: str) -> None:
        """May be called in a text thread."""
        self.rendered_ns = self.rendered_ns or time.monotonic_ns()
        if self.keeps_text and self.prompt_text is None:
            self.prompt_text = text

    def end_text(self) -> None:
        self.tokenized_ns = time.monotonic_ns()

    def wrote(self, began_ns: int, ended_ns: int) -> None:
        """A piece of content was handed to the kernel. A client that doesn't read makes that take long."""
        self.num_writes += 1
        self.first_write_ns = self.first_write_ns or ended_ns
        self.last_write_ns = ended_ns
        if ended_ns - began_ns >= BLOCKED_NS:
            self.blocked_ns += ended_ns - began_ns
            self.blocked.extend((began_ns, ended_ns))


class Share(NamedTuple):
    """One request's part of a step. `request_id` is None once it is too old to be known."""

    request_id: str | None
    choice: int
    kind: StepKind
    position: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the engine. `number` goes on counting when the engine is restarted."""

    number: int
    report: StepReport
    shares: tuple[Share, ...]
    admitted: tuple[str | None, ...]
    preempted: tuple[str | None, ...]

    @property
    def num_tokens(self) -> int:
        return sum(share.tokens for share in self.shares)
