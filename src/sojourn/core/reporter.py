"""Collects what the engine did for the record, until it is sent. Owned by the engine; the front end keeps the records.

Everything is copied out as integers at the moment it happens: requests and blocks have moved on when it is read.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.core.request import Request, WaitingReason
from sojourn.core.scheduler import Scheduler, SchedulerOutput
from sojourn.gc_pauses import GCPauses
from sojourn.records.life import (
    Admitted,
    Ended,
    EngineReport,
    Preempted,
    StepKind,
    StepReport,
    Wait,
    encode_step,
)


@dataclass(slots=True)
class StepTimes:
    """Of one step, in nanoseconds of the monotonic clock."""

    start: int = 0
    scheduled: int = 0
    ran: int = 0
    compute: int = 0  # a duration, like the next; both lie between `scheduled` and `ran`
    sample: int = 0
    end: int = 0


class Reporter:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pauses = GCPauses()
        self._pauses.start()
        self._reasons: dict[int, WaitingReason] = {}  # by sequence number, as last reported
        self._num_evictions = 0
        self._waits: list[Wait] = []
        self._preempted: list[Preempted] = []
        self._admitted: list[Admitted] = []
        self._work: list[int] = []
        self._step = b""

    def scheduled(self, out: SchedulerOutput, at_ns: int) -> None:
        """After `schedule()`, before anything is computed."""
        for request in out.preempted:
            handle, at_ns = request.sequence, request.preempted_ns
            self._preempted.append(Preempted(handle, at_ns, request.num_lost, request.num_reached))
        for request in out.admitted:
            self._admitted.append(self._admission(request))
        self._report_waits(at_ns)
        self._work = []
        for request, num_tokens in out.scheduled:
            self._work += (request.sequence, request.num_computed, num_tokens, _kind(request))

    def stepped(self, step: int, out: SchedulerOutput, times: StepTimes) -> None:
        """After `update()`."""
        scheduler, pool = self._scheduler, self._scheduler.kv.pool
        evicted, self._num_evictions = pool.num_evictions - self._num_evictions, pool.num_evictions
        self._step = encode_step(
            StepReport(
                step=step,
                start_ns=times.start,
                schedule_ns=times.scheduled - times.start,
                prepare_ns=times.ran - times.scheduled - times.compute - times.sample,
                compute_ns=times.compute,
                sample_ns=times.sample,
                update_ns=times.end - times.ran,
                budget=out.budget,
                num_running=len(scheduler.running),
                num_waiting=len(scheduler.waiting),
                kv_live=pool.num_live,
                kv_cached=pool.num_cached,
                kv_free=pool.num_free,
                num_evicted=evicted,
                work=array("I", self._work).tobytes(),
                admitted=_handles(out.admitted),
                preempted=_handles(out.preempted),
            )
        )

    def take(self) -> EngineReport:
        """What has come together since the last call."""
        report = EngineReport(
            waits=self._waits,
            preempted=self._preempted,
            admitted=self._admitted,
            ended=self._take_ended(),
            pauses=self._pauses.take(),
            blocks=self._take_blocks(),
            step=self._step,
        )
        self._waits, self._preempted, self._admitted, self._step = [], [], [], b""
        return report

    def close(self) -> None:
        """Stops listening to the garbage collector."""
        self._pauses.stop()

    def _admission(self, request: Request) -> Admitted:
        """Right after `schedule()`, so that what is computed already is what was found."""
        kv = self._scheduler.kv
        hit = request.block_table[: request.num_computed // kv.block_size]
        self._reasons.pop(request.sequence, None)
        return Admitted(
            handle=request.sequence,
            searched_ns=request.searched_ns,
            admitted_ns=request.admitted_ns,
            hit_tokens=request.num_computed,
            stopped=kv.prefix_cache.why_stopped(request, len(hit)),
            owner=kv.owners[hit[-1]] if hit else None,
            hit=hit,
        )

    def _report_waits(self, at_ns: int) -> None:
        """Changes only: most requests wait for the same thing from step to step."""
        reasons = self._reasons
        for request in self._scheduler.waiting:
            if reasons.get(request.sequence) is not request.waiting_reason:
                reasons[request.sequence] = request.waiting_reason
                self._waits.append(Wait(request.sequence, at_ns, request.waiting_reason))

    def _take_ended(self) -> list[Ended]:
        finished, self._scheduler.ended = self._scheduler.ended, []
        now = time.monotonic_ns()
        for request in finished:
            self._reasons.pop(request.sequence, None)
        return [
            Ended(request.sequence, now, str(request.finish_reason), request.peak_blocks, request.last_table)
            for request in finished
        ]

    def _take_blocks(self) -> bytes:
        kv = self._scheduler.kv
        if not kv.pool.touched:
            return b""
        changes: list[int] = []
        for block_id in kv.pool.touched:
            changes += (block_id, kv.pool.state(block_id), kv.owners[block_id])
        kv.pool.touched.clear()
        return array("q", changes).tobytes()


def _kind(request: Request) -> StepKind:
    if request.num_computed < request.num_reached:
        return StepKind.RECOMPUTE
    return StepKind.PREFILL if request.num_computed < len(request.prompt_ids) else StepKind.DECODE


def _handles(requests: Sequence[Request]) -> bytes:
    return array("I", [request.sequence for request in requests]).tobytes() if requests else b""
