"""The sampler beside the native backend: one call without the GIL per step, on the backend's worker threads.

Owns the C++ sampler, which holds the state of every slot. Every sampling field is computed there; sampler.py is its
slow twin and says what each step means. Both give the same tokens and logprobs, bit for bit: they use the same
exponential (exponential.py), add in the same order, and take the logarithm of a logprob in one place, logprobs.logprob.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.executor.logprobs import logprob
from sojourn.executor.sampler import Choice
from sojourn.native import LogprobRows, SamplingRequest, ThreadPool
from sojourn.native import Sampler as Kernel
from sojourn.records import Admission, TokenLogprobs


class NativeSampler:
    """Used like Sampler, and like it not thread-safe. `pool` is idle whenever this is called."""

    def __init__(
        self,
        vocab_size: int,
        max_num_seqs: int,
        *,
        isa: str,
        pool: ThreadPool,
        logprobs_mode: Literal["raw", "processed"] = "raw",
    ) -> None:
        self.vocab_size = vocab_size
        self._pool = pool
        self._kernel = Kernel(isa, vocab_size, max_num_seqs, logprobs_mode == "raw")
        self._admissions: list[Admission | None] = [None] * max_num_seqs
        self._takes_best = np.zeros(max_num_seqs, np.bool_)
        self._top_logprobs = np.full(max_num_seqs, -1, np.int32)  # -1: no logprobs

    def admit(self, admission: Admission) -> None:
        """A request takes a slot; whoever had it before is forgotten."""
        slot, params = admission.slot, admission.params
        request = _request(admission, self.vocab_size)
        self._kernel.admit(slot, request)
        self._admissions[slot] = admission
        self._top_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self._takes_best[slot] = params.temperature == 0.0 and params.logprobs is None and not request.edits_logits

    def prompt_of(self, slot: int) -> tuple[list[int], int]:
        """The prompt of the request in a slot, and how many top logprobs it wants for each prompt position."""
        admission = self._admissions[slot]
        assert admission is not None, f"this is a bug: slot {slot} was never admitted"
        return admission.prompt_ids, admission.params.prompt_logprobs or 0

    def logprobs_of(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], count: int
    ) -> list[TokenLogprobs | None]:
        """Of one given token per row [R, vocab], beside the row's `count` best. None for a row that would fail."""
        found = _Logprobs(len(token_ids), min(count, self.vocab_size))
        self._kernel.logprobs_of(self._pool, logits, np.array(token_ids, np.int32), found.rows)
        return found.entries([count] * len(token_ids))

    def wants_only_best(self, slots: NDArray[np.int32]) -> bool:
        """True if every one of these requests takes the arg-max of unedited logits and shows no logprobs."""
        return bool(self._takes_best[slots].all())

    def take_best(self, slots: NDArray[np.int32], token_ids: NDArray[np.int32], maxima: NDArray[np.float32]) -> Choice:
        """What `sample` would choose for such requests, from each row's arg-max and maximum."""
        failed = np.logical_not(np.isfinite(maxima))
        token_ids[failed] = -1
        return Choice(token_ids, failed, [None] * len(slots))

    def sample(self, logits: NDArray[np.float32], slots: NDArray[np.int32], seq_lens: NDArray[np.int32]) -> Choice:
        """Choose a token for each row [R, vocab]; `seq_lens` are the positions they will have. Overwrites logits."""
        token_ids = np.empty(len(slots), np.int32)
        counts = np.minimum(self._top_logprobs[slots], self.vocab_size)
        found = _Logprobs(len(slots), max(0, int(counts.max(initial=0))))
        self._kernel.sample(self._pool, logits, slots, seq_lens, token_ids, found.rows)
        return Choice(token_ids, token_ids < 0, found.entries(counts.tolist()))


class _Logprobs:
    """What the C++ side returns of logprobs, before the logarithm."""

    def __init__(self, rows: int, width: int) -> None:
        self._valid = np.zeros(rows, np.bool_)
        self._totals = np.empty(rows, np.float64)
        self._highest, self._logits = np.empty(rows, np.float32), np.empty(rows, np.float32)
        self._ranks = np.empty(rows, np.int64)
        self._top_ids, self._top_logits = np.empty((rows, width), np.int32), np.empty((rows, width), np.float32)
        self.rows = LogprobRows(
            self._valid, self._totals, self._highest, self._logits, self._ranks, self._top_ids, self._top_logits
        )

    def entries(self, counts: Sequence[int]) -> list[TokenLogprobs | None]:
        """One per row, None where not valid; `counts[row]` most likely tokens each."""
        entries: list[TokenLogprobs | None] = [None] * len(counts)
        for row in np.flatnonzero(self._valid).tolist():
            highest, total, count = float(self._highest[row]), float(self._totals[row]), counts[row]
            entries[row] = TokenLogprobs(
                logprob=logprob(float(self._logits[row]), highest, total),
                rank=int(self._ranks[row]),
                top_ids=self._top_ids[row, :count].tolist(),
                top_logprobs=[logprob(value, highest, total) for value in self._top_logits[row, :count].tolist()],
            )
        return entries


def _request(admission: Admission, vocab_size: int) -> SamplingRequest:
    params, bias = admission.params, admission.params.logit_bias or {}
    request = SamplingRequest()
    request.temperature, request.seed = params.temperature, admission.seed % 2**64
    request.top_k, request.top_p, request.min_p = params.top_k, params.top_p, params.min_p
    request.repetition_penalty = params.repetition_penalty
    request.presence_penalty, request.frequency_penalty = params.presence_penalty, params.frequency_penalty
    request.min_tokens = params.min_tokens
    ends = {*admission.eos_token_ids, *params.stop_token_ids}
    request.end_ids = [token_id for token_id in ends if 0 <= token_id < vocab_size]
    request.logprobs, request.top_logprobs = params.logprobs is not None, min(params.logprobs or 0, vocab_size)
    request.restricted, request.allowed_ids = params.allowed_token_ids is not None, list(params.allowed_token_ids or ())
    request.banned = [list(sequence) for sequence in params.bad_token_ids]
    request.bias_ids, request.biases = list(bias.keys()), list(bias.values())
    if request.edits_logits:  # only then does it matter what came before
        request.prompt_ids, request.output_ids = admission.prompt_ids, admission.output_ids
    return request
