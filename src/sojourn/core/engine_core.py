"""The engine: schedule, run, update. Owns scheduler and runner; turns requests into steps and steps into deltas."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from sojourn.core.reporter import Reporter, StepTimes
from sojourn.core.request import Request
from sojourn.core.scheduler import Scheduler, SchedulerOutput
from sojourn.core.step_log import StepLog, StepRecord
from sojourn.env import audit_every_step
from sojourn.errors import InvalidRequest
from sojourn.records import Admission, EngineInfo, EngineRequest, EngineStats, StepPlan, StepResult, TokenDelta
from sojourn.records.checks import check_request
from sojourn.records.life import EngineReport


class Runner(Protocol):
    """What executes a step. It keeps the sampler's state between steps and never looks at a request."""

    def run(self, plan: StepPlan) -> StepResult: ...


class EngineCore:
    """Runs requests step by step. Not thread-safe: one thread adds, aborts and steps."""

    def __init__(self, scheduler: Scheduler, runner: Runner, info: EngineInfo) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.info = info
        self.step_log = StepLog()
        self._reporter: Reporter | None = None
        self._num_added = 0
        self._audit = audit_every_step()
        self._last_step_ns = time.monotonic_ns()

    def add_request(self, request: EngineRequest) -> Request:
        """Check and queue a request.

        Raises ContextLengthExceeded when the prompt can never fit, InvalidRequest when it is empty, holds ids outside
        the vocabulary, or reuses the id of an unfinished request.
        """
        check_request(request.prompt_ids, request.params, self.info, eos_token_ids=request.eos_token_ids)
        if self.scheduler.knows(request.request_id):
            raise InvalidRequest(
                f"A request with id {request.request_id!r} is already being served.", param="request_id"
            )
        room = self.info.max_model_len - len(request.prompt_ids)
        wanted = request.params.max_tokens
        live = Request(
            spec=request,
            seed=request.params.seed if request.params.seed is not None else secrets.randbits(64),
            max_tokens=room if wanted is None else min(wanted, room),
            sequence=self._num_added,
            arrival_time=request.arrival_ns / 1e9 if request.arrival_ns else time.monotonic(),
        )
        self._num_added += 1
        self.scheduler.add(live)
        return live

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests in any state; unknown and finished ids change nothing. They give no further deltas."""
        self.scheduler.abort(request_ids)

    def start_reporting(self) -> None:
        """From now on `report()` tells what happens. Whoever calls this must go on calling `report()`."""
        self._reporter = Reporter(self.scheduler)

    def report(self) -> EngineReport | None:
        """What happened since the last call; None unless reporting was started."""
        return None if self._reporter is None else self._reporter.take()

    def stop_reporting(self) -> None:
        """Idempotent."""
        if self._reporter is not None:
            self._reporter.close()
            self._reporter = None

    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished()

    def step(self) -> list[TokenDelta]:
        times = StepTimes(start=time.monotonic_ns())
        scheduled = self.scheduler.schedule()
        times.scheduled = time.monotonic_ns()
        if self._reporter is not None:
            self._reporter.scheduled(scheduled, times.scheduled)
        if not scheduled.scheduled:  # the only running request gave its blocks back: it returns in the next step
            return []
        result = self.runner.run(self._plan(scheduled))
        times.ran = time.monotonic_ns()
        times.compute, times.sample = result.compute_ns, result.sample_ns
        positions = array("I", [request.num_computed for request, _ in scheduled.scheduled])  # update() advances them
        deltas = self.scheduler.update(scheduled, result)
        times.end = time.monotonic_ns()
        self._record(times, scheduled, positions)
        return deltas

    def stats(self) -> EngineStats:
        counters, pool = self.scheduler.counters, self.scheduler.kv.pool
        return EngineStats(
            step=len(self.step_log),
            num_running=len(self.scheduler.running),
            waiting_by_reason=self.scheduler.waiting_by_reason(),
            kv_live=pool.num_live,
            kv_cached=pool.num_cached,
            kv_free=pool.num_free,
            num_preemptions=counters.num_preemptions,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            recomputed_tokens=counters.recomputed_tokens,
            generation_tokens=counters.generation_tokens,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            finished={str(reason): count for reason, count in counters.finished.items()},
            last_step_ns=self._last_step_ns,
        )

    def audit(self) -> None:
        """Raise AssertionError if the accounting of blocks, slots or queues is wrong anywhere."""
        self.scheduler.audit()

    def _plan(self, scheduled: SchedulerOutput) -> StepPlan:
        """Flatten to the arrays that the executor works on.

        Lists first: an array operation costs more than a decode step's few numbers, most of all with a step's weights
        just gone through the caches.
        """
        work = scheduled.scheduled
        token_ids: list[int] = []
        positions: list[int] = []
        cu_seqlens_q, seq_lens = [0], []
        samples, prompt_logprobs = [], []
        tables = np.zeros((len(work), max(len(request.block_table) for request, _ in work)), np.int32)
        for table, (request, n) in zip(tables, work, strict=True):
            first, last = request.num_computed, request.num_computed + n
            token_ids += request.tokens(first, last)
            positions += range(first, last)
            cu_seqlens_q.append(len(token_ids))
            seq_lens.append(last)
            samples.append(last == request.num_tokens and request.max_tokens > 0)
            prompt_logprobs.append(_wants_prompt_logprobs(request))
            table[: len(request.block_table)] = request.block_table
        return StepPlan(
            step=len(self.step_log),
            token_ids=np.array(token_ids, np.int32),
            positions=np.array(positions, np.int32),
            cu_seqlens_q=np.array(cu_seqlens_q, np.int32),
            seq_lens=np.array(seq_lens, np.int32),
            block_tables=tables,
            slots=np.array([request.slot for request, _ in work], np.int32),
            samples=np.array(samples, np.bool_),
            prompt_logprobs=np.array(prompt_logprobs, np.bool_),
            admitted=[self._admission(request) for request in scheduled.admitted],
        )

    def _admission(self, request: Request) -> Admission:
        assert request.slot is not None
        return Admission(
            slot=request.slot,
            params=request.params,
            seed=request.seed,
            eos_token_ids=request.spec.eos_token_ids,
            prompt_ids=request.prompt_ids,
            output_ids=request.output_ids,
        )

    def _record(self, times: StepTimes, scheduled: SchedulerOutput, positions: array[int]) -> None:
        if self._audit:
            self.audit()
        self._last_step_ns = times.end
        if self._reporter is not None:  # whoever reads the reports keeps them: a second copy would be tens of MB
            self._reporter.stepped(len(self.step_log), scheduled, times)
            self.step_log.skip()
            return
        self.scheduler.ended.clear()
        self.step_log.append(
            StepRecord(
                step=len(self.step_log),
                start=times.start / 1e9,
                duration=(times.end - times.start) / 1e9,
                compute=times.compute / 1e9,
                sample=times.sample / 1e9,
                request_ids=tuple(request.request_id for request, _ in scheduled.scheduled),
                positions=positions,
                counts=array("I", [n for _, n in scheduled.scheduled]),
            )
        )


def _wants_prompt_logprobs(request: Request) -> bool:
    """Until the first output token exists; a recomputation after that doesn't give them a second time."""
    return request.params.prompt_logprobs is not None and not request.output_ids
