"""Turns rows of logits into tokens, for a whole batch at once, in NumPy. Owns the sampling state of every slot.

The sampler of the backends without native code, and the slow twin of native_sampler.py: same tokens, same logprobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.executor.exponential import exp_nonpositive
from sojourn.executor.logprobs import RUN, sum_runs, token_logprobs, top_ids, total
from sojourn.executor.philox import uniform
from sojourn.executor.sampler_state import SlotState
from sojourn.records import Admission, TokenLogprobs

FIRST_CANDIDATES = 128  # how many of the best tokens a nucleus is first looked for in


@dataclass(slots=True)
class Choice:
    """One entry per row."""

    token_ids: NDArray[np.int32]  # -1 where failed
    failed: NDArray[np.bool_]
    logprobs: list[TokenLogprobs | None]  # None where not wanted or failed


class Sampler:
    """The pipeline of one row; no step of it looks at another row, so a token never depends on the batch.

    1. A row with a NaN or an infinite maximum fails, alone.
    2. Allowed ids, bans, min_tokens, bias, penalties (SlotState).
    3. temperature 0: arg-max, lowest id on ties. Otherwise softmax of logits / temperature, then
    4. min_p, top_k, top_p, in this order, each on what the one before left,
    5. and the token where the cumulative probability passes a number drawn from (seed, position).

    Logprobs are those of the model's own logits ("raw"), or of the logits after 2 ("processed").
    """

    def __init__(
        self, vocab_size: int, max_num_seqs: int, *, logprobs_mode: Literal["raw", "processed"] = "raw"
    ) -> None:
        self.vocab_size = vocab_size
        self._raw = logprobs_mode == "raw"
        self._slots: list[SlotState | None] = [None] * max_num_seqs
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._inverse_temperature = np.zeros(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)

    def admit(self, admission: Admission) -> None:
        """A request takes a slot; whoever had it before is forgotten."""
        slot = admission.slot
        self._slots[slot] = SlotState(admission, self.vocab_size)
        self._temperature[slot] = admission.params.temperature
        with np.errstate(
            divide="ignore", over="ignore"
        ):  # finite also for a subnormal temperature, whose inverse is not
            inverse = np.float32(1.0) / self._temperature[slot]
        self._inverse_temperature[slot] = min(inverse, np.finfo(np.float32).max)
        self._min_p[slot] = admission.params.min_p

    def prompt_of(self, slot: int) -> tuple[list[int], int]:
        """The prompt of the request in a slot, and how many top logprobs it wants for each prompt position."""
        state = self._state(slot)
        return state.prompt_ids, state.params.prompt_logprobs or 0

    def logprobs_of(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], count: int
    ) -> list[TokenLogprobs | None]:
        """Of one given token per row [R, vocab], beside the row's `count` best. None for a row that would fail."""
        return token_logprobs(logits, token_ids, [count] * len(token_ids))

    def wants_only_best(self, slots: NDArray[np.int32]) -> bool:
        """True if every one of these requests takes the arg-max of unedited logits and shows no logprobs."""
        return all(self._state(slot).takes_best for slot in slots.tolist())

    def take_best(self, slots: NDArray[np.int32], token_ids: NDArray[np.int32], maxima: NDArray[np.float32]) -> Choice:
        """What `sample` would choose for such requests, from each row's arg-max and maximum."""
        failed = np.logical_not(np.isfinite(maxima))
        token_ids[failed] = -1
        for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
            if token_id >= 0:
                self._state(slot).append(token_id)
        return Choice(token_ids, failed, [None] * len(slots))

    def sample(self, logits: NDArray[np.float32], slots: NDArray[np.int32], seq_lens: NDArray[np.int32]) -> Choice:
        """Choose a token for each row [R, vocab]; `seq_lens` are the positions they will have. Overwrites logits."""
        states = [self._state(slot) for slot in slots.tolist()]
        failed = ~np.isfinite(logits.max(axis=1))
        logits[failed] = 0.0
        wanting = [row for row, state in enumerate(states) if state.params.logprobs is not None]
        shown = logits[wanting] if self._raw else None
        for row, state in enumerate(states):
            if state.edits_logits:
                state.edit(logits[row])
        highest = logits.max(axis=1)
        failed |= ~np.isfinite(highest)
        logits[failed], highest[failed] = 0.0, 0.0
        token_ids = logits.argmax(axis=1).astype(np.int32)
        drawing = np.flatnonzero((self._temperature[slots] > 0) & ~failed)
        if len(drawing):
            # The whole batch in one go: what follows per row only looks at what is left of it.
            weights = self._weights(logits[drawing], highest[drawing], slots[drawing])
            for row, row_weights in zip(drawing.tolist(), weights, strict=True):
                token_ids[row] = _draw(logits[row], row_weights, states[row], int(seq_lens[row]))
        logprobs = self._logprobs(logits[wanting] if shown is None else shown, wanting, states, token_ids)
        for row in np.flatnonzero(failed).tolist():
            logprobs[row] = None
        token_ids[failed] = -1
        for state, token_id in zip(states, token_ids.tolist(), strict=True):
            if token_id >= 0:
                state.append(token_id)
        return Choice(token_ids, failed, logprobs)

    def _weights(
        self, logits: NDArray[np.float32], highest: NDArray[np.float32], slots: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """exp((logit - highest) * (1 / temperature)), the best token's being 1, with min_p applied. [R, vocab]."""
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
            scaled = (logits - highest[:, None]) * self._inverse_temperature[slots][:, None]
        weights = exp_nonpositive(scaled)
        weights[weights < self._min_p[slots][:, None]] = 0.0
        return weights

    def _logprobs(
        self,
        rows: NDArray[np.float32],
        wanting: list[int],
        states: list[SlotState],
        token_ids: NDArray[np.int32],
    ) -> list[TokenLogprobs | None]:
        found: list[TokenLogprobs | None] = [None] * len(states)
        counts = [states[row].params.logprobs or 0 for row in wanting]
        for row, entry in zip(wanting, token_logprobs(rows, token_ids[wanting].tolist(), counts), strict=True):
            found[row] = entry
        return found

    def _state(self, slot: int) -> SlotState:
        state = self._slots[slot]
        assert state is not None, f"this is a bug: slot {slot} was never admitted"
        return state


def _draw(logits: NDArray[np.float32], weights: NDArray[np.float32], state: SlotState, position: int) -> int:
    """The token of one row at which the cumulative weight passes the number drawn for (seed, position).

    `weights` [vocab] are unnormalised probabilities. They are accumulated by descending logit where top_k or top_p
    made that order necessary, otherwise by ascending id: run by run, then inside the run where the number lies.
    """
    params, random = state.params, uniform(state.seed, position)
    ids: NDArray[np.int64] | None = None
    if 0 < params.top_k < len(weights):
        ids = top_ids(logits, params.top_k)
    if params.top_p < 1.0:
        ids = _nucleus(logits, weights, ids, params.top_p)
    if ids is not None:
        cumulative = _accumulate(weights[ids])
        return int(ids[_first_above(cumulative, random * cumulative[-1])])
    cumulative = np.cumsum(sum_runs(weights))
    target = random * cumulative[-1]
    run = _first_above(cumulative, target)
    before = cumulative[run - 1] if run else np.float64(0.0)
    return run * RUN + _first_above(_accumulate(weights[run * RUN : (run + 1) * RUN]), target - before)


def _accumulate(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.cumsum(weights, dtype=np.float64)


def _first_above(cumulative: NDArray[np.float64], target: np.float64) -> int:
    """The first entry above the target, or, if rounding left none, the first that reaches the end.

    So never an entry of weight 0.
    """
    index = int(np.searchsorted(cumulative, target, side="right"))
    return min(index, int(np.searchsorted(cumulative, cumulative[-1], side="left")))


def _nucleus(
    logits: NDArray[np.float32], weights: NDArray[np.float32], ids: NDArray[np.int64] | None, top_p: float
) -> NDArray[np.int64]:
    """The fewest most likely tokens that hold a share of top_p of the weight of `ids` (None: of all); at least one."""
    wanted = top_p * total(weights if ids is None else weights[ids])
    count = FIRST_CANDIDATES
    while True:
        candidates = top_ids(logits, count) if ids is None else ids
        cumulative = _accumulate(weights[candidates])
        if ids is not None or cumulative[-1] >= wanted or count >= len(weights):
            return candidates[: 1 + int(np.searchsorted(cumulative[:-1], wanted, side="left"))]
        count *= 8
