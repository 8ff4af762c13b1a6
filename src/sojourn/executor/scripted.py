"""A model without weights for tests: emits given token ids, or a hash of its whole context as the KV blocks hold it.

It takes the place of a backend behind the runner, so scheduling, paging, sampling and all above are the real ones.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from sojourn.errors import StartupError
from sojourn.records import StepPlan

PEAK = 40.0  # logit of the scripted token; all others have 0, so it is certain at any temperature up to 2
DEFAULT_EOS = 0


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to emit for prompts that begin with `prompt`; the end-of-text id follows when `tokens` run out."""

    prompt: list[int]
    tokens: list[int]
    nan_at: int | None = None  # output index at which the model's output becomes NaN


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line whose prompt fits decides; without one, tokens are a hash of the context."""

    vocab_size: int = 1024
    lines: list[Line] = []
    eos_token_id: int = DEFAULT_EOS
    seconds_per_step: float = 0.0
    seconds_per_token: float = 0.0
    raise_at_step: int | None = None
    block_at_step: int | None = None  # sleep for an hour: an engine that is alive but stuck
    max_model_len: int = 4096

    @classmethod
    def load(cls, path: Path) -> Script:
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            raise StartupError(f"{path}: not a script for the scripted backend: {error}") from error


class ScriptedBackend:
    """Stores token ids in KV blocks as a model stores K and V, and reads its context back from them.

    A wrong block table, a block shared by mistake or a lost chunk therefore changes the tokens that follow.
    """

    def __init__(self, script: Script, num_blocks: int, block_size: int) -> None:
        self.script = script
        self._block_size = block_size
        self._tokens = np.full((num_blocks, block_size), -1, np.int32)
        self._lines: dict[int, tuple[Line, int]] = {}  # slot -> its line and prompt length

    def forward(self, plan: StepPlan) -> NDArray[np.float32]:
        """Returns [T, 1]: for each row the id that follows it (NaN where the script says so)."""
        self._faults(plan)
        for admission in plan.admitted:
            self._lines.pop(admission.slot, None)
            line = self._line_for(admission.prompt_ids)
            if line is not None:
                self._lines[admission.slot] = line, len(admission.prompt_ids)
        hidden = np.zeros((plan.num_tokens, 1), np.float32)
        spans = list(zip(plan.cu_seqlens_q[:-1].tolist(), plan.cu_seqlens_q[1:].tolist(), strict=True))
        for table, (first, last) in zip(plan.block_tables, spans, strict=True):
            positions = plan.positions[first:last]
            self._tokens[table[positions // self._block_size], positions % self._block_size] = plan.token_ids[
                first:last
            ]
        for index, (_, last) in enumerate(spans):
            hidden[last - 1] = self._next_token(plan, index)
        return hidden

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """[R, 1] -> [R, vocab]."""
        logits = np.zeros((len(hidden), self.script.vocab_size), np.float32)
        logits[np.arange(len(hidden)), hidden[:, 0].astype(np.int64)] = PEAK
        return logits

    def argmax(self, hidden: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return hidden[:, 0].astype(np.int32), np.full(len(hidden), PEAK, np.float32)

    def _next_token(self, plan: StepPlan, index: int) -> float:
        length = int(plan.seq_lens[index])
        num_blocks = -(-length // self._block_size)
        context = self._tokens[plan.block_tables[index, :num_blocks]].reshape(-1)[:length]
        found = self._lines.get(int(plan.slots[index]))
        if found is None:
            # Never the end-of-text id, so that only max_tokens ends it.
            return 1.0 + zlib.crc32(context.tobytes()) % (self.script.vocab_size - 1)
        line, prompt_length = found
        output_index = length - prompt_length
        if line.nan_at is not None and output_index >= line.nan_at:
            return float("nan")
        return float(line.tokens[output_index] if 0 <= output_index < len(line.tokens) else self.script.eos_token_id)

    def _line_for(self, prompt_ids: Sequence[int]) -> Line | None:
        return next((line for line in self.script.lines if prompt_ids[: len(line.prompt)] == line.prompt), None)

    def _faults(self, plan: StepPlan) -> None:
        script = self.script
        if script.raise_at_step is not None and plan.step >= script.raise_at_step:
            raise RuntimeError(f"the script says that step {plan.step} fails")
        if script.block_at_step is not None and plan.step >= script.block_at_step:
            time.sleep(3600)
        if script.seconds_per_step or script.seconds_per_token:
            time.sleep(script.seconds_per_step + script.seconds_per_token * plan.num_tokens)
