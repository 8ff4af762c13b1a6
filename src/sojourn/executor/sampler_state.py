"""What the sampler remembers of one request while it holds a slot: its parameters and the tokens it has produced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.records import Admission


class SlotState:
    """Edits one row of logits in a fixed order: allowed ids, bans, min_tokens, bias, penalties.

    The order is vLLM's, so that a combination of fields means the same here as there.
    """

    def __init__(self, admission: Admission, vocab_size: int) -> None:
        params = admission.params
        self.params = params
        self.seed = admission.seed
        self.prompt_ids = admission.prompt_ids
        self._output_ids = list(admission.output_ids)
        self._counts = Counter(admission.output_ids)
        self._allowed = _ids(params.allowed_token_ids) if params.allowed_token_ids is not None else None
        ends = {*admission.eos_token_ids, *params.stop_token_ids}
        self._end_ids = _ids([token_id for token_id in ends if 0 <= token_id < vocab_size])
        self._bias_ids = _ids(list(params.logit_bias or ()))
        self._bias = np.array(list((params.logit_bias or {}).values()), np.float32)
        self._repeats = params.repetition_penalty != 1.0
        self._penalises_output = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._seen = np.zeros(vocab_size, np.bool_) if self._repeats else None
        if self._seen is not None:
            self._seen[admission.prompt_ids] = True
            self._seen[admission.output_ids] = True
        self.edits_logits = bool(
            self._allowed is not None
            or params.bad_token_ids
            or params.min_tokens
            or params.logit_bias
            or self._repeats
            or self._penalises_output
        )

        self.takes_best = params.temperature == 0.0 and not self.edits_logits and params.logprobs is None

    def append(self, token_id: int) -> None:
        self._output_ids.append(token_id)
        self._counts[token_id] += 1
        if self._seen is not None:
            self._seen[token_id] = True

    def edit(self, row: NDArray[np.float32]) -> None:
        """Change one row [vocab] in place."""
        if self._allowed is not None:
            kept = row[self._allowed].copy()
            row.fill(-np.inf)
            row[self._allowed] = kept
        for *beginning, last in self.params.bad_token_ids:
            if not beginning or self._output_ids[-len(beginning) :] == beginning:
                row[last] = -np.inf
        if len(self._output_ids) < self.params.min_tokens:
            row[self._end_ids] = -np.inf
        row[self._bias_ids] += self._bias
        self._penalise(row)

    def _penalise(self, row: NDArray[np.float32]) -> None:
        """Repetition: prompt and output tokens, once each. Presence and frequency: output tokens only."""
        if self._seen is not None:
            seen = row[self._seen]
            penalty = np.float32(self.params.repetition_penalty)
            row[self._seen] = np.where(seen > 0, seen / penalty, seen * penalty)
        if self._penalises_output and self._counts:
            ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            row[ids] -= counts * np.float32(self.params.frequency_penalty) + np.float32(self.params.presence_penalty)


def _ids(token_ids: Sequence[int]) -> NDArray[np.int64]:
    return np.array(token_ids, np.int64)
