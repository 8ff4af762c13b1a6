"""Decides what each step computes. Owns the waiting and running requests; knows ids only, no text and no arrays."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sojourn.core.kv_manager import KVManager
from sojourn.core.request import Request, WaitingReason
from sojourn.core.step_pace import StepPace
from sojourn.core.stopping import check_stop
from sojourn.records import FinishReason, StepResult, TokenDelta, TokenLogprobs

MAX_PASSES = 16  # later requests that may be admitted while an earlier one is blocked for want of KV blocks
MAX_BLOCKED = 8  # blocked requests looked past in one step, so that a long queue costs no more than a short one


@dataclass(slots=True)
class SchedulerOutput:
    """One step: which request computes how many tokens, and who took or lost a sampler slot for it."""

    scheduled: list[tuple[Request, int]] = field(default_factory=list)
    num_decodes: int = 0  # the first ones of `scheduled`
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    budget: int = 0  # tokens that the step could have held


@dataclass(slots=True)
class Counters:
    """Counted since the engine started."""

    num_preemptions: int = 0
    prompt_tokens: int = 0  # each once, computed or found in the prefix cache
    cached_tokens: int = 0  # of those, the ones found
    recomputed_tokens: int = 0  # lost in a preemption, then computed again
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens, at each admission
    prefix_hits: int = 0
    finished: Counter[FinishReason] = field(default_factory=Counter)


class Scheduler:
    """One token budget, no phases: each step spends `max_num_batched_tokens` letting `num_computed` catch up.

    The order within a step:

    1. Every running request that decodes gets its token. If its next block can't be had, the youngest request of
       the lowest priority is preempted: it gives its blocks back and is computed again later.
    2. The one prompt that is partly computed gets the rest of the budget, or half of it while others wait.
    3. Waiting requests are admitted in order while their next chunk finishes their prompt; the first that doesn't
       finish becomes the one partly computed. So a short prompt never waits for a long one to be done, and a long
       one always moves.
    4. What is then left goes to the partly computed one.

    With a `pace` the budget shrinks beside decodes, possibly below the length of a short prompt. Then a second prompt
    may be partly computed, if it would have finished within a whole step: rule 3 holds for it as before.

    Requests are served by (priority, arrival). One for which the KV blocks don't suffice may be passed by later ones
    MAX_PASSES times, no more. One that waits for the partly computed prompt is passed freely: that prompt gets half of
    every step whoever passes, so the wait has an end.
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        pace: StepPace | None = None,
    ) -> None:
        self.kv = kv
        self.max_num_batched_tokens = max_num_batched_tokens
        self.pace = pace
        # A step must hold one token of every running request, so there are never more of them than tokens.
        self.max_num_seqs = min(max_num_seqs, max_num_batched_tokens)
        self.waiting: list[Request] = []  # by rank
        self.running: list[Request] = []  # by rank
        self.ended: list[Request] = []  # emptied by whoever reports them
        self.counters = Counters()
        self._requests: dict[str, Request] = {}
        self._free_slots = list(range(self.max_num_seqs - 1, -1, -1))

    def add(self, request: Request) -> None:
        """Queue a request. The caller has checked that it can fit some day."""
        self._requests[request.request_id] = request
        bisect.insort(self.waiting, request, key=lambda r: r.rank)

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def knows(self, request_id: str) -> bool:
        return request_id in self._requests

    def abort(self, request_ids: Iterable[str]) -> list[Request]:
        """Drop requests in whatever state they are. Unknown or finished ids change nothing."""
        aborted = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self._finish(request, FinishReason.ABORT)
                aborted.append(request)
        return aborted

    def schedule(self) -> SchedulerOutput:
        """Choose this step's work. Allocates blocks and slots; `num_computed` advances only in `update`."""
        out = SchedulerOutput()
        self._make_way_for_priority(out)
        displaced = len(out.preempted)
        self._schedule_decodes(out)
        # If blocks ran out just now, whoever was thrown out must not come straight back.
        self._schedule_prefills(out, admitting=len(out.preempted) == displaced)
        self._blame_priority()
        return out

    def update(self, scheduled: SchedulerOutput, result: StepResult) -> list[TokenDelta]:
        """Take the executor's answers: advance, append tokens, finish. Returns what each request gained."""
        now = time.monotonic()
        if self.pace is not None:
            prompts = scheduled.scheduled[scheduled.num_decodes :]
            depth = max((request.num_computed for request, _ in prompts), default=0)
            seconds = (result.compute_ns + result.sample_ns) / 1e9
            self.pace.observe(scheduled.num_decodes, sum(n for _, n in prompts), depth, seconds)
        deltas = []
        answers = zip(scheduled.scheduled, result.token_ids.tolist(), result.failed.tolist(), strict=True)
        for index, ((request, num_new), token_id, failed) in enumerate(answers):
            if failed:
                deltas.append(self._fail(request))
                continue
            self._advance(request, num_new, result.prompt_logprobs.get(index))
            if token_id >= 0:
                request.output_ids.append(token_id)
                request.token_times.append(now)
                self.counters.generation_tokens += 1
            if token_id >= 0 or request.num_remaining == 0:  # the latter: max_tokens is 0, the prompt alone was wanted
                deltas.append(self._delta(request, token_id, result.logprobs[index]))
        return deltas

    def waiting_by_reason(self) -> dict[str, int]:
        if not self.waiting:
            return {}
        return {str(reason): count for reason, count in Counter(r.waiting_reason for r in self.waiting).items()}

    def audit(self) -> None:
        """Raise AssertionError unless blocks, slots and queues account for each other."""
        self.kv.audit(self.running)
        slots = [r.slot for r in self.running]
        assert sorted([*self._free_slots, *(s for s in slots if s is not None)]) == list(range(self.max_num_seqs))
        assert all(r.slot is None and not r.block_table and r.num_computed == 0 for r in self.waiting)
        assert self.waiting == sorted(self.waiting, key=lambda r: r.rank), "waiting requests are out of order"
        assert self.running == sorted(self.running, key=lambda r: r.rank), "running requests are out of order"
        assert {r.request_id for r in [*self.waiting, *self.running]} == set(self._requests), "a request is lost"
        assert len(self._partial()) <= (1 if self.pace is None else 2), "too many prompts are partly computed"

    def _schedule_decodes(self, out: SchedulerOutput) -> None:
        """One token for every running request past its prefill."""
        for request in list(self.running):
            if request.slot is not None and not _is_prefilling(request) and self._grow(request, out):
                out.scheduled.append((request, 1))
        out.num_decodes = len(out.scheduled)

    def _grow(self, request: Request, out: SchedulerOutput) -> bool:
        """Get the block for the request's next token, preempting the last in rank as often as needed.

        False if the request itself was the last one left. A victim ranks behind every request already scheduled in
        this step, since those are visited by rank.
        """
        while not self.kv.grow(request):
            victim = self.running[-1]
            self._preempt(victim, out)
            if victim is request:
                return False
        return True

    def _schedule_prefills(self, out: SchedulerOutput, *, admitting: bool) -> None:
        partial = self._partial()
        budget = self._prompt_budget(out.num_decodes, partial)
        out.budget = out.num_decodes + budget
        guaranteed = 0
        if partial:
            alone = len(partial) == 1 and not self.waiting
            guaranteed = min(partial[0].num_remaining, budget if alone else (budget + 1) // 2)
        left = budget - guaranteed
        for short in partial[1:]:
            chunk = min(short.num_remaining, left)
            if chunk > 0:
                out.scheduled.append((short, chunk))
                left -= chunk
        if admitting:
            left -= self._admit_waiting(out, left, len(partial))
        else:
            self._mark_waiting(self.waiting, WaitingReason.KV_BLOCKS)
        if partial and guaranteed + left > 0:
            out.scheduled.append((partial[0], min(partial[0].num_remaining, guaranteed + left)))

    def _admit_waiting(self, out: SchedulerOutput, budget: int, num_partial: int) -> int:
        """Start what may start beside `num_partial` partly computed prompts. Returns the tokens spent on it."""
        left = budget
        blocked: list[Request] = []
        for position, request in enumerate(list(self.waiting)):
            reason = self._limit_reached(left, blocked)
            if reason is not None:
                self._mark_waiting(self.waiting[position - len(out.admitted) :], reason)
                break
            request.searched_ns = time.monotonic_ns()
            hit = self.kv.prefix_cache.match(request)
            remaining = request.num_tokens - len(hit) * self.kv.block_size
            reason = self._reason_to_wait(request, hit, remaining <= left or self._may_join(remaining, num_partial))
            if reason is not None:
                request.waiting_reason = reason
                if reason is not WaitingReason.PREFIX:
                    blocked.append(request)
                continue
            self._admit(request, hit, out)
            for earlier in blocked:
                earlier.num_passes += earlier.waiting_reason is WaitingReason.KV_BLOCKS
            chunk = min(remaining, left)  # less than the whole prompt spends all that is left, so nobody follows
            left -= chunk
            out.scheduled.append((request, chunk))
        return budget - left

    def _prompt_budget(self, num_decodes: int, partial: Sequence[Request]) -> int:
        """Prompt tokens that the step may compute beside its decodes."""
        whole = self.max_num_batched_tokens - num_decodes
        if self.pace is None or num_decodes == 0 or not (partial or self.waiting):
            return whole
        depth = partial[0].num_computed if partial else 0
        return min(whole, self.pace.prompt_tokens_beside(num_decodes, depth))

    def _partial(self) -> list[Request]:
        """Prompts partly computed, the one with most to do first."""
        return sorted(filter(_is_prefilling, self.running), key=lambda r: -r.num_remaining)

    def _may_join(self, num_tokens: int, num_partial: int) -> bool:
        """Whether one more prompt may be partly computed beside `num_partial` others."""
        return num_partial == 0 or (num_partial == 1 and num_tokens <= self._short_prompt)

    @property
    def _short_prompt(self) -> int:
        """Tokens of a prompt that may be partly computed beside another: what half of a whole step holds."""
        return 0 if self.pace is None else self.max_num_batched_tokens // 2

    def _limit_reached(self, left: int, blocked: Sequence[Request]) -> WaitingReason | None:
        """Why nobody further down the queue can be admitted in this step."""
        if left <= 0:
            return WaitingReason.TOKEN_BUDGET
        if not self._free_slots:
            return WaitingReason.SEQ_SLOTS
        if len(blocked) >= MAX_BLOCKED:
            return blocked[0].waiting_reason
        for request in blocked:
            if request.num_passes >= MAX_PASSES and request.waiting_reason is WaitingReason.KV_BLOCKS:
                return request.waiting_reason
        return None

    def _reason_to_wait(self, request: Request, hit: Sequence[int], may_start: bool) -> WaitingReason | None:
        if self.kv.prefix_cache.awaits(request, len(hit)):
            return WaitingReason.PREFIX
        if not self.kv.fits(request, hit, headroom=self.kv.headroom_for(request, len(self.running))):
            return WaitingReason.KV_BLOCKS
        if not may_start:
            return WaitingReason.TOKEN_BUDGET
        return None

    def _mark_waiting(self, requests: Iterable[Request], reason: WaitingReason) -> None:
        for request in requests:
            request.waiting_reason = reason

    def _blame_priority(self) -> None:
        """Whatever limit holds a request up: if one of better priority that came later runs, it waits for that."""
        if not (self.waiting and self.running) or self.running[0].priority >= self.waiting[-1].priority:
            return  # always under first come, first served
        latest, position = -1, 0  # the latest arrival among running requests of better priority; both lists are by rank
        for request in self.waiting:
            while position < len(self.running) and self.running[position].priority < request.priority:
                latest = max(latest, self.running[position].sequence)
                position += 1
            if latest > request.sequence and request.waiting_reason is not WaitingReason.PREFIX:
                request.waiting_reason = WaitingReason.PRIORITY

    def _admit(self, request: Request, hit: Sequence[int], out: SchedulerOutput) -> None:
        self.waiting.remove(request)
        self.kv.admit(request, hit)
        request.slot = self._free_slots.pop()
        bisect.insort(self.running, request, key=lambda r: r.rank)
        out.admitted.append(request)
        request.admitted_ns = time.monotonic_ns()
        if self.kv.prefix_cache.serves(request):
            self.counters.prefix_queries += request.num_tokens
        self.counters.prefix_hits += request.num_computed
        # After a preemption too: blocks that it had not come to, computed by another request meanwhile.
        found = self._reach(request, request.num_computed)
        request.num_cached += found
        self.counters.cached_tokens += found

    def _make_way_for_priority(self, out: SchedulerOutput) -> None:
        """Preempt running requests of strictly lower priority until the first waiting one can be admitted.

        Before anything is scheduled, so that no victim is part of the step. Nothing happens unless the way made is
        then used: equal priorities never displace each other, and nobody is displaced for a request that would
        still have to wait for blocks, for a shared prefix, or for a prompt of its own rank that is partly computed.
        """
        head = self.waiting[0] if self.waiting else None
        lower = [r for r in self.running if head is not None and r.priority > head.priority]
        if head is None or not lower:
            return
        hit = self.kv.prefix_cache.match(head)
        stays = self.running[: len(self.running) - len(lower)]
        obtainable = self.kv.pool.num_available + self.kv.num_freed_by(lower)
        in_the_way = self._in_the_way_of(head)
        if (
            self.kv.num_blocks_for(head.num_tokens) + self._headroom(head, stays) > obtainable
            or self.kv.prefix_cache.awaits(head, len(hit))
            or any(request not in lower for request in in_the_way)
        ):
            return
        for request in in_the_way:
            self._preempt(request, out)
            lower.remove(request)
        for victim in reversed(lower):
            if self._free_slots and self.kv.fits(head, hit, headroom=self._headroom(head, self.running)):
                return
            self._preempt(victim, out)

    def _in_the_way_of(self, request: Request) -> list[Request]:
        """The partly computed prompts that must be gone before this one may start."""
        partial = self._partial()
        if self.pace is None:
            fits_in_step = request.num_tokens <= (self.max_num_batched_tokens - len(self.running)) // 2
            return [] if fits_in_step else partial
        return partial[1:] if request.num_tokens <= self._short_prompt else partial

    def _headroom(self, request: Request, running: Sequence[Request]) -> int:
        """Blocks to leave at the start of a step, when those that decode have yet to take theirs."""
        return self.kv.headroom_for(request, len(running)) + sum(self.kv.num_missing(r) for r in running)

    def _preempt(self, request: Request, out: SchedulerOutput) -> None:
        """Take everything from a running request and queue it again; its tokens so far are kept and recomputed."""
        request.num_lost = request.num_computed
        self._stop_running(request)
        request.preempted_ns = time.monotonic_ns()
        request.num_preemptions += 1
        request.waiting_reason = WaitingReason.KV_BLOCKS
        bisect.insort(self.waiting, request, key=lambda r: r.rank)
        self.counters.num_preemptions += 1
        out.preempted.append(request)

    def _stop_running(self, request: Request, *, poisoned: bool = False) -> None:
        self.running.remove(request)
        self.kv.release(request, poisoned=poisoned)
        assert request.slot is not None
        self._free_slots.append(request.slot)
        request.slot = None

    def _finish(self, request: Request, reason: FinishReason) -> None:
        del self._requests[request.request_id]
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self._stop_running(request, poisoned=reason is FinishReason.ERROR)
        request.finish_reason = reason
        self.ended.append(request)
        self.counters.finished[reason] += 1

    def _fail(self, request: Request) -> TokenDelta:
        self._finish(request, FinishReason.ERROR)
        message = "The model's output held no finite value for this request (NaN or infinity), or no token was allowed."
        return TokenDelta(request_id=request.request_id, finish_reason=FinishReason.ERROR, error=message)

    def _advance(self, request: Request, num_new: int, prompt_logprobs: list[TokenLogprobs | None] | None) -> None:
        if prompt_logprobs is not None:
            # A prompt preempted halfway is computed again from its start: cut its list back to where the chunk begins.
            start = request.num_computed + 1 if request.num_computed else 0
            request.prompt_logprobs[start:] = prompt_logprobs
        lost = max(0, request.num_reached - request.num_computed)
        self.counters.recomputed_tokens += min(num_new, lost)
        self._reach(request, request.num_computed + num_new)
        self.kv.advance(request, num_new)

    def _reach(self, request: Request, position: int) -> int:
        """Count the prompt tokens before `position` that were never counted; returns how many those are."""
        new = max(0, min(position, len(request.prompt_ids)) - request.num_reached)
        request.num_reached = max(request.num_reached, position)
        self.counters.prompt_tokens += new
        return new

    def _delta(self, request: Request, token_id: int, logprobs: TokenLogprobs | None) -> TokenDelta:
        ended = check_stop(request)
        if ended is not None:
            self._finish(request, ended[0])
        first = len(request.output_ids) <= 1
        return TokenDelta(
            request_id=request.request_id,
            token_ids=[token_id] if token_id >= 0 else [],
            logprobs=[logprobs] if logprobs is not None else None,
            prompt_logprobs=request.prompt_logprobs if first and request.params.prompt_logprobs is not None else None,
            num_cached_tokens=request.num_cached,
            finish_reason=ended[0] if ended else None,
            stop_token_id=ended[1] if ended else None,
        )

    def __iter__(self) -> Iterator[Request]:
        """Every unfinished request, in order of arrival in the engine."""
        return iter(self._requests.values())


def _is_prefilling(request: Request) -> bool:
    """Running, and the step it takes part in next doesn't compute its last token alone."""
    return request.num_remaining > 1
