"""The runner's own rules, on a backend whose logits the test decides."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sojourn.executor.native_sampler import NativeSampler
from sojourn.executor.runner import ModelRunner, TokenSampler
from sojourn.executor.sampler import Sampler
from sojourn.native import ThreadPool, isas
from sojourn.records import Admission, SamplingParams, StepPlan
from tests.graph.plans import make_plan

VOCAB = 20


class Fixed:
    """Hidden states are positions; the logits of the poisoned one hold a NaN."""

    def __init__(self, poisoned: int | None) -> None:
        self._poisoned = poisoned

    def forward(self, plan: StepPlan) -> NDArray[np.float32]:
        return plan.positions[:, None].astype(np.float32)

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        logits = np.random.default_rng(0).normal(0, 1, (len(hidden), VOCAB)).astype(np.float32)
        if self._poisoned is not None:
            logits[hidden[:, 0] == self._poisoned, 3] = np.nan
        return logits

    def argmax(self, hidden: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        logits = self.logits(hidden)
        return logits.argmax(axis=1).astype(np.int32), logits.max(axis=1)


@pytest.fixture(params=["numpy", "native"])
def sampler(request: pytest.FixtureRequest) -> TokenSampler:
    if request.param == "numpy":
        return Sampler(VOCAB, 1)
    return NativeSampler(VOCAB, 1, isa=isas()[0], pool=ThreadPool(1))


@pytest.mark.parametrize("poisoned", [None, 1])
def test_b41_a_nan_in_a_prompt_position_fails_the_request(sampler: TokenSampler, poisoned: int | None) -> None:
    prompt = [4, 5, 6, 7]
    params = SamplingParams(temperature=0.0, prompt_logprobs=2)
    admission = Admission(slot=0, params=params, seed=1, eos_token_ids=(), prompt_ids=prompt, output_ids=[])
    plan = make_plan([(prompt, 0)], np.arange(4)[None, :])
    plan.slots, plan.admitted, plan.prompt_logprobs = np.zeros(1, np.int32), [admission], np.ones(1, np.bool_)
    result = ModelRunner(Fixed(poisoned), sampler).run(plan)
    assert result.failed.tolist() == [poisoned is not None]
    entries = result.prompt_logprobs[0]
    assert [entry is None for entry in entries] == [True, False, poisoned is not None, False]
