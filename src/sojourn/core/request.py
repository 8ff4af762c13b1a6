"""One live request: what was asked, how far it has come, and what it holds. Owned and changed by the scheduler only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sojourn.records import EngineRequest, FinishReason, SamplingParams, TokenLogprobs
from sojourn.records.life import WaitingReason

__all__ = ["Request", "WaitingReason"]


@dataclass(slots=True, eq=False)
class Request:
    """`num_computed` of `num_tokens` positions have their K and V in the blocks of `block_table`.

    Prefill, decode, chunks, cache hits and recomputation after a preemption are all the same thing:
    `num_computed` catching up with `num_tokens`.
    """

    spec: EngineRequest
    seed: int
    max_tokens: int  # what the context leaves, at most what was asked for
    sequence: int  # arrival order in this engine
    arrival_time: float = field(default_factory=time.monotonic)  # seconds, CLOCK_MONOTONIC
    output_ids: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)  # seconds, one per output token
    num_computed: int = 0
    num_reached: int = 0  # the most that num_computed ever was: what lies below and is computed anew was lost
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of full blocks, chained; grows, never shrinks
    slot: int | None = None  # held while running
    waiting_reason: WaitingReason = WaitingReason.STEP_RUNNING
    num_passes: int = 0  # later requests admitted while this one was blocked
    num_cached: int = 0  # prompt tokens found in the prefix cache that it had not computed itself
    num_preemptions: int = 0
    num_lost: int = 0  # positions that its latest preemption took from it
    searched_ns: int = 0  # when the search for its cached prefix last began, like the next for its record
    admitted_ns: int = 0
    preempted_ns: int = 0
    peak_blocks: int = 0
    last_table: list[int] = field(default_factory=list)  # what it held before it last gave its blocks back
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # so far; position 0 has none
    finish_reason: FinishReason | None = None

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    @property
    def prompt_ids(self) -> list[int]:
        return self.spec.prompt_ids

    @property
    def params(self) -> SamplingParams:
        return self.spec.params

    @property
    def priority(self) -> int:
        return self.spec.priority

    @property
    def rank(self) -> tuple[int, int]:
        """Order of service: lower priority value first, then arrival."""
        return self.spec.priority, self.sequence

    @property
    def num_tokens(self) -> int:
        return len(self.spec.prompt_ids) + len(self.output_ids)

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.num_tokens - self.num_computed

    def tokens(self, start: int, stop: int) -> Sequence[int]:
        """Token ids at positions start to stop - 1, prompt and output seen as one list."""
        prompt = self.spec.prompt_ids
        if stop <= len(prompt):
            return prompt[start:stop]
        offset = len(prompt)
        return prompt[start:] + self.output_ids[max(0, start - offset) : stop - offset]
