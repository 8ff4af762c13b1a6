"""The native sampler against its slow twin: the same tokens and the same bits of every logprob, on any logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sojourn.executor.native_sampler import NativeSampler
from sojourn.executor.sampler import Choice, Sampler
from sojourn.native import ThreadPool, isas
from sojourn.records import Admission, SamplingParams, TokenLogprobs

Logits = NDArray[np.float32]
Mode = Literal["raw", "processed"]

POOLS = {threads: ThreadPool(threads) for threads in (1, 3)}
LARGE = 151_936  # Qwen2's vocabulary
SCALES = (0.0, 0.1, 3.0, 30.0, 1e30)  # of the logits: from flat to certain, and beyond what a float32 difference holds

every_isa = pytest.mark.parametrize("isa", isas())


def params(vocab: int) -> st.SearchStrategy[dict[str, Any]]:
    """Any combination of the sampler's fields."""
    ids = st.integers(0, vocab - 1)
    return st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([0.0, 1e-40, 1e-6, 0.3, 0.8, 1.0, 2.0]),
            "top_k": st.sampled_from([-1, 1, 2, 5, 50, 1000, 10**6]),
            "top_p": st.sampled_from([0.0, 1e-9, 0.3, 0.95, 0.999999, 1.0]),
            "min_p": st.sampled_from([0.0, 1e-6, 0.1, 1.0]),
            "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
            "presence_penalty": st.sampled_from([-1.5, 0.0, 0.7]),
            "frequency_penalty": st.sampled_from([-0.4, 0.0, 1.1]),
            "logit_bias": st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=5),
            "allowed_token_ids": st.lists(ids, min_size=1, max_size=9, unique=True).map(tuple),
            "bad_token_ids": st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
            "min_tokens": st.integers(0, 3),
            "stop_token_ids": st.lists(ids, max_size=2).map(tuple),
            "logprobs": st.sampled_from([0, 1, 5, 20]),
        },
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[Logits, list[Admission]]:
    """Rows of logits with ties, minus infinities and now and then a NaN or an infinity, and a request for each."""
    vocab = draw(st.sampled_from([1, 5, 16, 257, 1024, 1025, 5000]))
    requests = draw(st.lists(params(vocab), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.normal(0, 1, (len(requests), vocab)) * draw(st.sampled_from(SCALES))
    if draw(st.booleans()):
        logits = np.round(logits)  # ties, both zeros among them
    spoiled = draw(st.sampled_from([None, None, None, -np.inf, np.inf, np.nan]))
    if spoiled is not None:
        for _ in range(rng.integers(1, vocab + 1) if spoiled == -np.inf else 1):
            logits[rng.integers(len(logits)), rng.integers(vocab)] = spoiled
    admissions = [
        Admission(
            slot=slot,
            params=SamplingParams(max_tokens=None, **fields),
            seed=int(rng.integers(-(2**63), 2**63)),
            eos_token_ids=(0, vocab + 7),
            prompt_ids=rng.integers(0, vocab, 4).tolist(),
            output_ids=rng.integers(0, vocab, rng.integers(0, 4)).tolist(),
        )
        for slot, fields in enumerate(requests)
    ]
    return logits.astype(np.float32), admissions


def twins(isa: str, vocab: int, slots: int, mode: Mode = "raw", threads: int = 3) -> tuple[Sampler, NativeSampler]:
    slow = Sampler(vocab, slots, logprobs_mode=mode)
    return slow, NativeSampler(vocab, slots, isa=isa, pool=POOLS[threads], logprobs_mode=mode)


def bits(entries: list[TokenLogprobs | None]) -> list[bytes]:
    return [msgspec.msgpack.encode(entry) for entry in entries]


def same(a: Choice, b: Choice) -> bool:
    return (
        a.token_ids.tolist() == b.token_ids.tolist()
        and a.failed.tolist() == b.failed.tolist()
        and bits(a.logprobs) == bits(b.logprobs)
    )


def sample(sampler: Sampler | NativeSampler, logits: Logits, slots: list[int], position: int) -> Choice:
    return sampler.sample(logits.copy(), np.array(slots, np.int32), np.full(len(slots), position, np.int32))


@every_isa
@pytest.mark.filterwarnings("ignore:overflow encountered")  # of logits near the end of float32, as intended
@pytest.mark.filterwarnings("ignore:invalid value")
@settings(max_examples=150, deadline=None)
@given(batch=batches(), mode=st.sampled_from(["raw", "processed"]), position=st.integers(0, 2**31 - 10))
def test_twins_agree_for_any_requests_and_logits(
    isa: str, batch: tuple[Logits, list[Admission]], mode: Mode, position: int
) -> None:
    """Over some steps, so that what was sampled before counts."""
    logits, admissions = batch
    slow, fast = twins(isa, logits.shape[1], len(admissions), mode)
    for admission in admissions:
        slow.admit(admission)
        fast.admit(admission)
    slots = list(range(len(admissions)))
    assert slow.wants_only_best(np.array(slots)) == fast.wants_only_best(np.array(slots))
    for step in range(3):
        assert same(sample(slow, logits, slots, position + step), sample(fast, logits, slots, position + step))


@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.8, "top_p": 0.95},
        {},
        {"top_k": 40_000, "top_p": 0.999},
        {"min_p": 0.02, "repetition_penalty": 1.2},
        {"temperature": 0.0},
    ],
)
def test_twins_agree_on_a_large_vocabulary(scale: float, fields: dict[str, float]) -> None:
    logits = (np.random.default_rng(7).normal(0, 1, (3, LARGE)) * scale).astype(np.float32)
    logits[1] = np.round(logits[1])
    slow, fast = twins(isas()[0], LARGE, 3)
    for slot in range(3):
        admission = Admission(
            slot=slot,
            params=SamplingParams(logprobs=20, **fields),
            seed=slot,
            eos_token_ids=(0,),
            prompt_ids=[5, 6],
            output_ids=[],
        )
        slow.admit(admission)
        fast.admit(admission)
    for position in range(4):
        assert same(sample(slow, logits, [0, 1, 2], position), sample(fast, logits, [0, 1, 2], position))


@every_isa
@settings(max_examples=40, deadline=None)
@given(batch=batches(), position=st.integers(0, 10**6))
def test_a_row_depends_on_neither_batch_nor_threads(
    isa: str, batch: tuple[Logits, list[Admission]], position: int
) -> None:
    logits, admissions = batch
    fast = twins(isa, logits.shape[1], len(admissions))[1]
    for admission in admissions:
        fast.admit(admission)
    order = np.random.default_rng(position).permutation(len(admissions)).tolist()
    together = sample(fast, logits[order], order, position)
    for index, slot in enumerate(order):
        alone = twins(isa, logits.shape[1], 1, threads=1)[1]
        alone.admit(replace(admissions[slot], slot=0))
        single = sample(alone, logits[slot : slot + 1], [0], position)
        assert single.token_ids[0] == together.token_ids[index]
        assert bits(single.logprobs) == [bits(together.logprobs)[index]]


@every_isa
@given(st.integers(0, 2**32), st.sampled_from([1, 40, 1030]), st.integers(0, 20))
def test_twins_agree_on_the_logprobs_of_a_prompt(isa: str, seed: int, vocab: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(0, 2, (5, vocab + 3))).astype(np.float32)[:, :vocab]  # rows that lie apart
    logits[2, rng.integers(vocab)] = np.nan
    token_ids = rng.integers(0, vocab, 5).tolist()
    slow, fast = twins(isa, vocab, 1)
    expected = slow.logprobs_of(logits, token_ids, count)
    assert expected[2] is None
    assert bits(fast.logprobs_of(logits, token_ids, count)) == bits(expected)


def test_what_the_caller_gets_wrong_is_refused() -> None:
    fast = twins(isas()[0], 40, 2)[1]
    request = Admission(slot=0, params=SamplingParams(), seed=1, eos_token_ids=(), prompt_ids=[1], output_ids=[])
    fast.admit(request)
    with pytest.raises(IndexError, match="slot"):
        sample(fast, np.zeros((2, 40), np.float32), [0, 1], 3)
    with pytest.raises(IndexError, match="two rows"):
        sample(fast, np.zeros((2, 40), np.float32), [0, 0], 3)
    with pytest.raises(IndexError, match="vocabulary"):
        fast.admit(replace(request, params=SamplingParams(logit_bias={40: 1.0})))
    with pytest.raises(ValueError, match="vocab"):
        sample(fast, np.zeros((1, 41), np.float32), [0], 3)
