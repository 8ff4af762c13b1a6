"""One step as the executor sees it: flat arrays in, flat arrays out. It knows nothing else of the core."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sojourn.records.outputs import TokenLogprobs
from sojourn.records.sampling_params import SamplingParams


@dataclass(slots=True, kw_only=True)
class Admission:
    """A request that takes a sampler slot before this step: new, or resumed after a preemption.

    The lists belong to the core's request and only ever grow at the end; the executor copies what it keeps.
    """

    slot: int
    params: SamplingParams
    seed: int  # drawn once per request, so a resumed one continues the same stream
    eos_token_ids: tuple[int, ...]
    prompt_ids: list[int]
    output_ids: list[int]


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """T tokens of S sequences. Tokens of one sequence are adjacent and ascending in position."""

    step: int
    token_ids: NDArray[np.int32]  # [T]
    positions: NDArray[np.int32]  # [T]
    cu_seqlens_q: NDArray[np.int32]  # [S + 1] offsets of each sequence's tokens
    seq_lens: NDArray[np.int32]  # [S] context length once this step is done
    block_tables: NDArray[np.int32]  # [S, max blocks], unused entries 0
    slots: NDArray[np.int32]  # [S] sampler slot of each sequence
    samples: NDArray[np.bool_]  # [S] True where this step reaches the sequence's last token, so a new one is sampled
    prompt_logprobs: NDArray[np.bool_]  # [S] True where this chunk's prompt logprobs are wanted
    admitted: list[Admission] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True, kw_only=True)
class StepResult:
    """Answers to the S sequences of a plan, in its order."""

    token_ids: NDArray[np.int32]  # [S], -1 where nothing was sampled
    failed: NDArray[np.bool_]  # [S] True where the logits held a NaN: that request alone ends with an error
    logprobs: list[TokenLogprobs | None]  # [S]
    prompt_logprobs: dict[int, list[TokenLogprobs | None]] = field(default_factory=dict)  # by sequence index
    compute_ns: int = 0  # forward pass
    sample_ns: int = 0
