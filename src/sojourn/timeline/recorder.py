"""Keeps the records of requests and steps. Owner of both rings, in the front end's process, on its event loop.

Writers: the server begins and ends records and stamps its own stations on them; the front end attaches choices and
hands over what the engine reports. Readers ask: `request`, `requests`, `steps` for pages of records, `finished` for
all that completed since they last asked, `subscribe` for what changed. Nothing here calls a reader.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from sojourn.gc_pauses import GCPauses
from sojourn.records import EngineInfo
from sojourn.records.life import (
    Admitted,
    Arrival,
    BlockState,
    Ended,
    EngineReport,
    Preempted,
    StepKind,
    Wait,
    WaitingReason,
    decode_step,
)
from sojourn.timeline.kv_map import KVMap
from sojourn.timeline.live import Changes, Subscription, signature
from sojourn.timeline.records import (
    NOT_WAITING,
    REASONS,
    ChoiceRecord,
    RequestRecord,
    RequestState,
    Share,
    StepRecord,
)

MAX_REQUESTS = 2_000
MAX_STEPS = 50_000
MAX_ROWS = 500_000  # steps of all records together: 40 MB
KEPT_OWNERS = 10_000  # requests whose handles can still be named
KEPT_PAUSES = 1_000

CLIENT_LEFT = 499

T = TypeVar("T")

_CODES = {reason: code for code, reason in enumerate(REASONS)}

Owner = tuple[str, int]  # record id, choice index


class Finished(NamedTuple):
    """`missed`: records that completed since the last call and were dropped before this one."""

    records: list[RequestRecord]
    next: int
    missed: int


class Recorder:
    """`origin_ns` is the zero of the times that views show: the start of the server."""

    def __init__(
        self,
        *,
        origin_ns: int | None = None,
        max_requests: int = MAX_REQUESTS,
        max_steps: int = MAX_STEPS,
        max_rows: int = MAX_ROWS,
        record_text: bool = False,
    ) -> None:
        self.origin_ns = time.monotonic_ns() if origin_ns is None else origin_ns
        self.record_text = record_text
        self.kv = KVMap()
        self._pauses: deque[tuple[int, int]] = deque(maxlen=KEPT_PAUSES)
        self._own_pauses = GCPauses()
        self.max_requests = max_requests
        self._max_rows = max_rows
        self._records: dict[str, RequestRecord] = {}  # live and finished, in order of arrival
        self._ended: deque[RequestRecord] = deque()  # those of `_records` that are over, oldest first
        self._num_ended = 0
        self._num_rows = 0  # of all of them
        self._completed: deque[RequestRecord] = deque(maxlen=max_requests)
        self._num_completed = 0
        self._steps: deque[tuple[bytes, dict[int, Owner]]] = deque(maxlen=max_steps)
        self._num_steps = 0
        self._attached: dict[str, tuple[RequestRecord, ChoiceRecord]] = {}  # by engine id, until the engine has it
        self._live: dict[int, tuple[RequestRecord, ChoiceRecord]] = {}  # by handle, until the engine released it
        self._owners: dict[int, Owner] = {}  # of one engine's life: its successor counts from 0 again
        self._subscriptions: list[Subscription] = []

    # What readers ask for

    def now_ms(self) -> float:
        """Milliseconds since the server's start."""
        return (time.monotonic_ns() - self.origin_ns) / 1e6

    def since_start_ms(self, stamp_ns: int) -> float:
        return (stamp_ns - self.origin_ns) / 1e6

    @property
    def num_steps(self) -> int:
        """Steps since the start, so the number of the next one."""
        return self._num_steps

    def request(self, request_id: str) -> RequestRecord | None:
        return self._records.get(request_id)

    def requests(
        self, *, state: RequestState | None = None, limit: int = 100, since_ms: float | None = None
    ) -> tuple[list[RequestRecord], bool]:
        """Newest first, of those accepted later than `since_ms` after the start; and whether there are more."""
        newest: Iterator[RequestRecord] = reversed(self._records.values())
        if since_ms is not None:
            after_us = round(since_ms * 1000)  # as coarse as the times that are shown
            newest = itertools.takewhile(
                lambda record: round((record.accepted_ns - self.origin_ns) / 1000) > after_us, newest
            )
        return _page((record for record in newest if state is None or record.state is state), limit)

    def steps(self, *, since: int = -1, limit: int = 1000) -> tuple[list[StepRecord], bool]:
        """Newest first, of those numbered higher than `since`; and whether there are more."""
        numbers = range(self._num_steps - 1, max(since, self._num_steps - len(self._steps) - 1), -1)
        return _page(map(self._step, numbers), limit)

    def steps_numbered(self, numbers: Iterable[int]) -> Iterator[StepRecord]:
        """Those of these steps that are still kept."""
        oldest = self._num_steps - len(self._steps)
        return (self._step(number) for number in sorted(numbers) if number >= oldest)

    def finished(self, since: int = 0) -> Finished:
        """Records that completed since an earlier call, oldest first. Pass `next` of that call, 0 at first."""
        first_kept = self._num_completed - len(self._completed)
        skipped = max(0, since - first_kept)
        records = list(itertools.islice(self._completed, skipped, None))
        return Finished(records, self._num_completed, max(0, first_kept - since))

    def live(self) -> list[RequestRecord]:
        """Those that are not over, oldest first."""
        return [record for record in self._records.values() if not record.state.is_final]

    def queue(self) -> list[tuple[RequestRecord, ChoiceRecord]]:
        """What waits in the engine, in order of service."""
        waiting = [pair for pair in self._live.values() if pair[1].waiting_reason is not None]
        return sorted(waiting, key=lambda pair: (pair[0].priority, pair[1].handle))

    def owner(self, handle: int) -> str | None:
        """The record id of a request by the engine's handle; None when it is too old to be known."""
        found = self._owners.get(handle)
        return None if found is None else found[0]

    @property
    def pauses(self) -> Iterable[tuple[int, int]]:
        """The garbage collector's, in both processes: start and end of each."""
        self._pauses.extend(self._own_pauses.take())
        return self._pauses

    @property
    def num_followers(self) -> int:
        return len(self._subscriptions)

    def subscribe(self) -> Subscription:
        """Follow what changes from now on. Whoever subscribes must `unsubscribe`."""
        subscription = Subscription(self._num_steps, self._num_ended, self._num_completed)
        self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.remove(subscription)

    def changes(self, subscription: Subscription, *, max_steps: int = 1000) -> Changes:
        """What the follower has not seen; at most the newest `max_steps` steps."""
        requests: dict[str, RequestRecord] = {}
        seen, signatures = subscription.signatures, {}
        for record in self.live():
            signatures[record.request_id] = now = signature(record)
            if seen.get(record.request_id) != now:
                requests[record.request_id] = record
        for ring, total, before in (
            (self._ended, self._num_ended, subscription.ended_seen),
            (self._completed, self._num_completed, subscription.completed_seen),
        ):
            for record in itertools.islice(ring, max(0, len(ring) - (total - before)), None):
                requests[record.request_id] = record
        steps, _ = self.steps(since=subscription.steps_seen - 1, limit=max_steps)
        blocks = list(subscription.blocks)
        subscription.signatures = signatures
        subscription.ended_seen, subscription.completed_seen = self._num_ended, self._num_completed
        subscription.steps_seen = self._num_steps
        subscription.blocks.clear()
        return Changes(list(requests.values()), steps[::-1], blocks)

    # What the server and the front end report

    def begin(self, request_id: str, *, client_request_id: str, endpoint: str, accepted_ns: int) -> RequestRecord:
        """A request for generation was let in. Its record is complete after `end`."""
        record = RequestRecord(
            request_id,
            client_request_id,
            endpoint,
            accepted_ns,
            received_at=time.time(),
            keeps_text=self.record_text,
        )
        self._records[request_id] = record
        return record

    def attach(
        self, record: RequestRecord, engine_ids: Iterable[str], *, prompt_tokens: int, priority: int
    ) -> dict[str, ChoiceRecord]:
        """The choices of one prompt are about to be sent to the engine. Returns their records by engine id."""
        record.state = RequestState.QUEUED
        record.priority = priority
        attached = {}
        for engine_id in engine_ids:
            choice = ChoiceRecord(engine_id, len(record.choices), prompt_tokens)
            choice.text = [] if self.record_text else None
            record.choices.append(choice)
            self._attached[engine_id] = record, choice
            attached[engine_id] = choice
        return attached

    def end(self, record: RequestRecord, status: int) -> None:
        """Nothing more will be sent for this request. `status` is HTTP's, 499 when the client left before any."""
        record.ended_ns = time.monotonic_ns()
        record.status = status
        left = record.client_left or status == CLIENT_LEFT
        if left:
            record.state_when_left, record.state = record.state, RequestState.ABORTED
        elif record.error is not None or status >= 400:
            record.state = RequestState.FAILED
        else:
            record.state = RequestState.FINISHED
        self._ended.append(record)
        self._num_ended += 1
        self._complete_if_over(record)
        self._trim()

    def refused(self, engine_id: str) -> None:
        """The engine did not take this choice."""
        found = self._attached.pop(engine_id, None)
        if found is not None:
            record, choice = found
            choice.ended_ns, choice.ended_how = time.monotonic_ns(), "refused"
            self._complete_if_over(record)

    def engine_ready(self, info: EngineInfo) -> None:
        self.kv = KVMap(info.num_kv_blocks, info.block_size)
        self._own_pauses.start()

    def engine_lost(self) -> None:
        """The engine's process is gone, and with it everything it held."""
        now = time.monotonic_ns()
        for record, choice in [*self._live.values(), *self._attached.values()]:
            choice.ended_ns, choice.ended_how, choice.waiting_reason = now, "engine_lost", None
            self._complete_if_over(record)
        self._live, self._attached, self._owners = {}, {}, {}
        self.kv = KVMap(self.kv.num_blocks, self.kv.block_size)
        for subscription in self._subscriptions:
            subscription.blocks.update(dict.fromkeys(range(self.kv.num_blocks)))

    def close(self) -> None:
        """Stops listening to the garbage collector. What was recorded stays readable."""
        self._own_pauses.stop()

    def arrived(self, arrival: Arrival) -> None:
        """The engine has a request in hand. Before the first report that speaks of it."""
        found = self._attached.pop(arrival.request_id, None)
        if found is None:
            return  # sent by somebody who keeps no record
        record, choice = found
        choice.handle, choice.received_ns, choice.taken_ns = arrival.handle, arrival.received_ns, arrival.taken_ns
        choice.waiting_reason = WaitingReason.LOADING if arrival.loading else WaitingReason.STEP_RUNNING
        choice.waits.extend((arrival.received_ns, _CODES[choice.waiting_reason]))
        self._live[arrival.handle] = found
        self._owners[arrival.handle] = record.request_id, choice.index
        if len(self._owners) > KEPT_OWNERS:
            del self._owners[next(iter(self._owners))]

    def take(self, report: EngineReport) -> None:
        """Everything of one message from the engine, before its tokens are handed to anybody."""
        for wait in report.waits:
            self._on_wait(wait)
        for preempted in report.preempted:
            self._on_preempted(preempted)
        for admitted in report.admitted:
            self._on_admitted(admitted)
        if report.blocks:
            self._on_blocks(report.blocks)
        if report.step:
            self._on_step(report.step)
        for ended in report.ended:
            self._on_ended(ended)
        self._pauses.extend(report.pauses)

    def _on_wait(self, wait: Wait) -> None:
        found = self._live.get(wait.handle)
        if found is not None:
            found[1].waiting_reason = wait.reason
            found[1].waits.extend((wait.since_ns, _CODES[wait.reason]))

    def _on_preempted(self, preempted: Preempted) -> None:
        found = self._live.get(preempted.handle)
        if found is not None:
            found[1].preemptions.append(preempted)
            found[1].table = []

    def _on_admitted(self, admitted: Admitted) -> None:
        found = self._live.get(admitted.handle)
        if found is None:
            return
        record, choice = found
        known = max((lost.high_water for lost in choice.preemptions), default=0)
        choice.cached_tokens += max(0, min(admitted.hit_tokens, choice.prompt_tokens) - known)
        if not choice.admissions and admitted.owner is not None:
            choice.prefix_from = self.owner(admitted.owner)
        choice.admissions.append(admitted)
        choice.waits.extend((admitted.searched_ns, NOT_WAITING))
        choice.waiting_reason = None
        choice.table = list(admitted.hit)
        if record.state is RequestState.QUEUED:
            record.state = RequestState.RUNNING

    def _on_blocks(self, data: bytes) -> None:
        changes = array("q", data)
        for first in range(0, len(changes), 3):
            block, state, owner = changes[first : first + 3]
            self.kv.set(block, state, owner)
            for subscription in self._subscriptions:
                subscription.blocks[block] = None
            holder = self._live.get(owner) if state == BlockState.LIVE else None
            if holder is not None and block not in holder[1].table:
                holder[1].table.append(block)

    def _on_step(self, data: bytes) -> None:
        report = decode_step(data)
        number = self._num_steps
        self._num_steps += 1
        self._steps.append((data, self._owners))
        work = array("I", report.work)
        tokens, requests = sum(work[2::4]), len(work) // 4
        instants = report.instants()
        prefilling = self._prefilling(work) if work[3::4].count(StepKind.DECODE) < requests else ()
        for first in range(0, len(work), 4):
            found = self._live.get(work[first])
            if found is None:
                continue
            choice = found[1]
            kind = work[first + 3]
            if prefilling and kind == StepKind.DECODE:
                choice.prefilled_by[choice.num_steps] = prefilling
            choice.rows.extend((number, *instants, work[first + 1], work[first + 2], kind, tokens, requests))
            self._num_rows += 1

    def _prefilling(self, work: array[int]) -> tuple[str, ...]:
        """Whose prompts a step computed."""
        owners = (self.owner(work[i]) for i in range(0, len(work), 4) if work[i + 3] != StepKind.DECODE)
        return tuple(dict.fromkeys(owner for owner in owners if owner is not None))

    def _on_ended(self, ended: Ended) -> None:
        found = self._live.pop(ended.handle, None)
        if found is None:
            return
        record, choice = found
        choice.ended_ns, choice.ended_how, choice.waiting_reason = ended.at_ns, ended.reason, None
        choice.peak_blocks, choice.table = ended.peak_blocks, ended.table
        self._complete_if_over(record)

    def _complete_if_over(self, record: RequestRecord) -> None:
        if not record.complete and record.ended_ns and all(choice.ended_ns for choice in record.choices):
            record.complete = True
            self._completed.append(record)
            self._num_completed += 1

    def _trim(self) -> None:
        while len(self._ended) > self.max_requests or (self._ended and self._num_rows > self._max_rows):
            record = self._ended.popleft()
            del self._records[record.request_id]
            self._num_rows -= sum(choice.num_steps for choice in record.choices)
            for choice in record.choices:  # the engine never said that it ended
                self._attached.pop(choice.engine_id, None)
                self._live.pop(choice.handle, None)

    def _step(self, number: int) -> StepRecord:
        data, owners = self._steps[number - self._num_steps]
        report = decode_step(data)
        work = array("I", report.work)
        shares = []
        for first in range(0, len(work), 4):
            request_id, choice = owners.get(work[first], (None, 0))
            shares.append(Share(request_id, choice, StepKind(work[first + 3]), work[first + 1], work[first + 2]))

        def names(handles: bytes) -> tuple[str | None, ...]:
            return tuple(owners[handle][0] if handle in owners else None for handle in array("I", handles))

        return StepRecord(number, report, tuple(shares), names(report.admitted), names(report.preempted))


def _page(items: Iterator[T], limit: int) -> tuple[list[T], bool]:
    page = list(itertools.islice(items, limit))
    return page, next(items, None) is not None
