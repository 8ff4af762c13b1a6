"""Runs one step: forward pass, logits of the rows that need them, sampling. Owns the sampler, not the KV memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sojourn.executor.sampler import Choice
from sojourn.records import Admission, StepPlan, StepResult, TokenLogprobs

HEAD_ROWS = 64  # prompt positions whose logits exist at once, since a row of a large vocabulary is a megabyte


class Backend(Protocol):
    """One way to execute a model: the seam for reference, native and CUDA."""

    def forward(self, plan: StepPlan) -> NDArray[np.float32]:
        """Write this step's K and V, then attend: [T, hidden], the rows that `logits` takes."""
        ...

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """[R, hidden] -> [R, vocab]. The caller may overwrite the result."""
        ...

    def argmax(self, hidden: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The best token of each row (lowest id on ties) and its logit, which is NaN if any logit of the row is."""
        ...


class TokenSampler(Protocol):
    """What turns logits into tokens: Sampler, or NativeSampler beside the native backend. They agree in every bit."""

    def admit(self, admission: Admission) -> None: ...

    def prompt_of(self, slot: int) -> tuple[list[int], int]: ...

    def logprobs_of(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], count: int
    ) -> list[TokenLogprobs | None]: ...

    def wants_only_best(self, slots: NDArray[np.int32]) -> bool: ...

    def take_best(
        self, slots: NDArray[np.int32], token_ids: NDArray[np.int32], maxima: NDArray[np.float32]
    ) -> Choice: ...

    def sample(self, logits: NDArray[np.float32], slots: NDArray[np.int32], seq_lens: NDArray[np.int32]) -> Choice: ...


class ModelRunner:
    """A backend with a sampler."""

    def __init__(self, backend: Backend, sampler: TokenSampler) -> None:
        self.backend = backend
        self.sampler = sampler

    def run(self, plan: StepPlan) -> StepResult:
        started = time.monotonic_ns()
        for admission in plan.admitted:
            self.sampler.admit(admission)
        hidden = self.backend.forward(plan)
        last_rows = hidden[plan.cu_seqlens_q[1:] - 1]
        # A NaN anywhere in a chunk reaches its last row through attention, so checking that one is enough to keep
        # poisoned blocks out of the prefix cache.
        failed: NDArray[np.bool_] = ~np.logical_and.reduce(np.isfinite(last_rows), axis=1)
        sampled = (plan.samples & ~failed).nonzero()[0]
        prompt_logprobs = self._prompt_logprobs(plan, hidden, failed)
        rows, slots = last_rows[sampled], plan.slots[sampled]
        only_best = self.sampler.wants_only_best(slots)
        logits = self.backend.logits(rows) if len(sampled) and not only_best else None
        best = self.backend.argmax(rows) if len(sampled) and only_best else None
        computed = time.monotonic_ns()

        token_ids = np.empty(len(plan.slots), np.int32)
        token_ids.fill(-1)
        logprobs: list[TokenLogprobs | None] = [None] * len(plan.slots)
        choice = None
        if logits is not None:
            choice = self.sampler.sample(logits, slots, plan.seq_lens[sampled])
        elif best is not None:
            choice = self.sampler.take_best(slots, *best)
        if choice is not None:
            token_ids[sampled] = choice.token_ids
            failed[sampled] |= choice.failed
            for index, entry in zip(sampled.tolist(), choice.logprobs, strict=True):
                logprobs[index] = entry
        return StepResult(
            token_ids=token_ids,
            failed=failed,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            compute_ns=computed - started,
            sample_ns=time.monotonic_ns() - computed,
        )

    def _prompt_logprobs(
        self, plan: StepPlan, hidden: NDArray[np.float32], failed: NDArray[np.bool_]
    ) -> dict[int, list[TokenLogprobs | None]]:
        """For each sequence that wants them: the entries of the prompt positions that this chunk predicts.

        Row a predicts position a + 1. Position 0 is predicted by nothing, so a prompt's first chunk begins with None.
        A row without logprobs (its logits hold a NaN) makes its sequence one of the failed.
        """
        found: dict[int, list[TokenLogprobs | None]] = {}
        for index in (plan.prompt_logprobs & ~failed).nonzero()[0].tolist():
            first, last = int(plan.cu_seqlens_q[index]), int(plan.cu_seqlens_q[index + 1])
            start = int(plan.positions[first])
            prompt, count = self.sampler.prompt_of(int(plan.slots[index]))
            targets = prompt[start + 1 : start + 1 + last - first]
            entries: list[TokenLogprobs | None] = [None] if start == 0 else []
            for offset in range(0, len(targets), HEAD_ROWS):
                rows = hidden[first + offset : first + min(offset + HEAD_ROWS, len(targets))]
                computed = self.sampler.logprobs_of(
                    self.backend.logits(rows), targets[offset : offset + HEAD_ROWS], count
                )
                failed[index] |= None in computed
                entries += computed
            found[index] = entries
        return found
