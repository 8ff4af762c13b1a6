"""The sampler: boundary values, filters against naive twins, independence of the batch, containment of NaN."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sojourn.executor.exponential import exp_nonpositive
from sojourn.executor.logprobs import token_logprobs, top_ids, total
from sojourn.executor.philox import philox4x32, uniform
from sojourn.executor.sampler import Choice, Sampler
from sojourn.records import Admission, SamplingParams

VOCAB = 257


def admission(slot: int = 0, *, seed: int = 1, prompt: list[int] | None = None, **params: object) -> Admission:
    return Admission(
        slot=slot,
        params=SamplingParams(**params),
        seed=seed,
        eos_token_ids=(0, 3),
        prompt_ids=prompt or [10, 11],
        output_ids=[],
    )


def rows(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, (count, VOCAB)).astype(np.float32)


def sample_one(row: NDArray[np.float32], position: int = 5, **params: object) -> Choice:
    sampler = Sampler(VOCAB, 1)
    sampler.admit(admission(**params))
    return sampler.sample(row[None].copy(), np.array([0], np.int32), np.array([position], np.int32))


def pick(row: NDArray[np.float32], position: int = 5, **params: object) -> int:
    return int(sample_one(row, position, **params).token_ids[0])


def support(row: NDArray[np.float32], draws: int = 400, **params: object) -> set[int]:
    return {pick(row, position, **params) for position in range(draws)}


def test_philox_gives_the_published_vectors() -> None:
    ones = 0xFFFFFFFF
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox4x32((ones,) * 4, (ones, ones)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    counter, key = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox4x32(counter, key) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_uniform_numbers_are_uniform_and_differ_by_seed_and_position() -> None:
    numbers = [uniform(seed, position) for seed in range(-20, 20) for position in range(250)]
    assert all(0.0 <= n < 1.0 for n in numbers)
    assert len(set(numbers)) == len(numbers)
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    expected = len(numbers) / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-squared, 19 degrees of freedom, p = 0.001


def test_the_exponential_is_accurate_and_exact_at_its_ends() -> None:
    x = -np.concatenate([np.geomspace(1e-8, 87, 200_000), np.linspace(0, 87, 200_000)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(exp_nonpositive(x) / exact - 1).max() < 2e-7
    assert exp_nonpositive(np.array([0, -87.01, -np.inf], np.float32)).tolist() == [1, 0, 0]


@given(st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.5, -np.inf]), min_size=1, max_size=40), st.integers(0, 45))
def test_top_ids_sorts_by_value_then_id(values: list[float], count: int) -> None:
    row = np.array(values, np.float32)
    naive = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert top_ids(row, count).tolist() == naive


@pytest.mark.parametrize("count", [1, 16, 257, 1023, 1024, 5000])
def test_a_total_is_the_exact_sum_to_float64(count: int) -> None:
    values = np.abs(np.random.default_rng(count).normal(0, 3, count)).astype(np.float32)
    assert math.isclose(total(values), math.fsum(values.tolist()), rel_tol=1e-14)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1e-6},
        {"temperature": 0.0, "top_k": 50, "top_p": 0.3},
    ],
)
def test_b40_values_that_leave_one_token_are_the_arg_max(params: dict[str, float]) -> None:
    for seed in range(30):
        row = rows(1, seed)[0]
        assert pick(row, **params) == int(row.argmax())


def test_b40_ties_go_to_the_lowest_id() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[40, 7, 90]] = 5.0
    for params in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}):
        assert pick(row, **params) == 7


@pytest.mark.parametrize("params", [{"top_k": 0}, {"top_k": -1}, {"top_k": 10**9}, {"top_p": 1.0}, {"min_p": 0.0}])
def test_b40_values_that_switch_a_filter_off_change_nothing(params: dict[str, float]) -> None:
    row = rows(1)[0]
    assert [pick(row, p, **params) for p in range(50)] == [pick(row, p) for p in range(50)]


def test_top_k_keeps_exactly_k() -> None:
    row = np.zeros(VOCAB, np.float32)
    assert support(row, top_k=5) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_smallest_nucleus() -> None:
    row = np.full(VOCAB, -50.0, np.float32)
    row[[9, 4, 100, 33]] = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    assert support(row, top_p=0.5) == {9}
    assert support(row, top_p=0.51) == {9, 4}
    assert support(row, top_p=0.76) == {9, 4, 100}
    assert support(row, top_p=0.95) == {9, 4, 100, 33}


def test_a_nucleus_wider_than_the_first_candidates_is_found() -> None:
    assert support(np.zeros(VOCAB, np.float32), draws=3000, top_p=0.9) == set(range(math.ceil(0.9 * VOCAB)))


def test_top_p_looks_at_what_top_k_left() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1] + [1e-9] * (VOCAB - 4), np.float32))
    assert support(row, top_k=2, top_p=0.57) == {0}
    assert support(row, top_k=2, top_p=0.58) == {0, 1}


def test_min_p_is_relative_to_the_best() -> None:
    row = np.log(np.array([0.5, 0.26, 0.24] + [1e-9] * (VOCAB - 3), np.float32))
    assert support(row, min_p=0.5) == {0, 1}


@pytest.mark.parametrize("params", [{}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 20}, {"top_p": 0.8}])
def test_frequencies_follow_the_distribution(params: dict[str, float]) -> None:
    """Chi-squared against the softmax computed the plain way in float64."""
    row = rows(1, 3)[0][:24]
    sampler = Sampler(24, 1)
    sampler.admit(admission(prompt=[1], **params))
    draws = 6000
    counts = np.zeros(24)
    for position in range(draws):
        choice = sampler.sample(row[None].copy(), np.zeros(1, np.int32), np.array([position], np.int32))
        counts[choice.token_ids[0]] += 1
    expected = draws * naive_distribution(row.astype(np.float64), **params)
    assert counts[expected == 0].sum() == 0
    kept = expected > 5
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert statistic < kept.sum() + 4 * math.sqrt(2 * kept.sum())


def naive_distribution(
    logits: NDArray[np.float64], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> NDArray[np.float64]:
    p = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[(before >= top_p) & (np.arange(len(p)) > 0)]] = 0
    return p / p.sum()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_a_token_never_depends_on_the_batch(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rows(count, seed)
    choices = (
        {"temperature": 0.0},
        {"top_k": 7},
        {"top_p": 0.6, "repetition_penalty": 1.4},
        {"min_p": 0.05, "logprobs": 3},
        {"logit_bias": {5: 4.0}, "presence_penalty": 1.0},
        {"allowed_token_ids": (1, 2, 3, 200)},
    )
    params = [choices[rng.integers(len(choices))] for _ in range(count)]
    together = Sampler(VOCAB, count)
    for slot in range(count):
        together.admit(admission(slot, seed=slot, **params[slot]))
    order = rng.permutation(count)
    positions = np.arange(count, dtype=np.int32) + 40
    batch = together.sample(logits[order].copy(), order.astype(np.int32), positions[order])
    for index, slot in enumerate(order.tolist()):
        single = Sampler(VOCAB, count)
        single.admit(admission(slot, seed=slot, **params[slot]))
        alone = single.sample(logits[slot : slot + 1].copy(), np.array([slot], np.int32), positions[slot : slot + 1])
        assert alone.token_ids[0] == batch.token_ids[index]
        assert alone.logprobs[0] == batch.logprobs[index]


def test_b41_a_nan_row_fails_alone() -> None:
    logits = rows(4)
    logits[1, 9] = np.nan
    logits[2, 9] = np.inf
    logits[3] = -np.inf
    sampler = Sampler(VOCAB, 4)
    for slot in range(4):
        sampler.admit(admission(slot, temperature=float(slot % 2), logprobs=1))
    choice = sampler.sample(logits.copy(), np.arange(4, dtype=np.int32), np.full(4, 9, np.int32))
    assert choice.failed.tolist() == [False, True, True, True]
    assert choice.token_ids.tolist() == [int(logits[0].argmax()), -1, -1, -1]


def test_b41_a_nan_outside_the_allowed_ids_fails_too() -> None:
    row = rows(1)[0]
    row[100] = np.nan
    assert sample_one(row, allowed_token_ids=(1, 2)).failed[0]


def test_forbidding_every_allowed_token_fails_the_request() -> None:
    assert sample_one(rows(1)[0], allowed_token_ids=(4,), bad_token_ids=((4,),)).failed[0]


def test_b43_presence_and_frequency_look_at_output_tokens_only() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[10], row[20] = 2.0, 1.0
    sampler = Sampler(VOCAB, 1)
    sampler.admit(admission(prompt=[10], temperature=0.0, presence_penalty=0.5, frequency_penalty=0.3))
    picks = [
        int(sampler.sample(row[None].copy(), np.zeros(1, np.int32), np.ones(1, np.int32)).token_ids[0])
        for _ in range(4)
    ]
    # 2.0, 2.0-0.8=1.2, 2.0-1.1=0.9 < 1.0, then 20 has fallen to 0.2
    assert picks == [10, 10, 20, 10]


def test_b43_repetition_counts_prompt_and_output_and_divides_or_multiplies() -> None:
    row = np.full(VOCAB, -9.0, np.float32)
    row[10], row[20], row[30] = 2.0, 1.5, 1.2
    sampler = Sampler(VOCAB, 1)
    sampler.admit(admission(prompt=[10], temperature=0.0, repetition_penalty=1.5))
    picks = [
        int(sampler.sample(row[None].copy(), np.zeros(1, np.int32), np.ones(1, np.int32)).token_ids[0])
        for _ in range(3)
    ]
    assert picks == [20, 10, 10]
    negative = np.full(VOCAB, -2.0, np.float32)
    negative[10] = -1.5
    assert pick(negative, prompt=[10], temperature=0.0, repetition_penalty=1.5) == 0


def test_b43_neutral_penalties_are_exact_no_ops() -> None:
    row = rows(1)[0]
    plain = sample_one(row, logprobs=20)
    neutral = sample_one(row, logprobs=20, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0)
    assert plain.logprobs == neutral.logprobs
    assert plain.token_ids == neutral.token_ids


def test_b18_every_end_id_is_masked_until_min_tokens() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[0, 3, 50]] = 9.0, 8.0, 7.0
    sampler = Sampler(VOCAB, 1)
    sampler.admit(admission(temperature=0.0, min_tokens=2, stop_token_ids=(50, 10**6)))
    picks = [
        int(sampler.sample(row[None].copy(), np.zeros(1, np.int32), np.ones(1, np.int32)).token_ids[0])
        for _ in range(3)
    ]
    assert picks == [1, 1, 0]


def test_banned_sequences_are_cut_at_their_last_token_only() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[5, 6, 7]] = 9.0, 8.0, 7.0
    sampler = Sampler(VOCAB, 1)
    sampler.admit(admission(temperature=0.0, bad_token_ids=((5, 5), (5, 6))))
    picks = [
        int(sampler.sample(row[None].copy(), np.zeros(1, np.int32), np.ones(1, np.int32)).token_ids[0])
        for _ in range(3)
    ]
    assert picks == [5, 7, 5]


def test_a_bias_forces_and_forbids() -> None:
    row = rows(1)[0]
    assert pick(row, temperature=0.0, logit_bias={77: 100.0}) == 77
    assert pick(row, temperature=0.0, logit_bias={int(row.argmax()): -100.0}) != int(row.argmax())


def test_logprobs_are_the_models_own_unless_processed_ones_are_wanted() -> None:
    row = rows(1)[0]
    exact = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    for mode, biased in (("raw", exact), ("processed", None)):
        sampler = Sampler(VOCAB, 1, logprobs_mode=mode)
        sampler.admit(admission(temperature=0.0, logprobs=2, logit_bias={77: 100.0}))
        entry = sampler.sample(row[None].copy(), np.zeros(1, np.int32), np.ones(1, np.int32)).logprobs[0]
        assert entry is not None
        if biased is not None:
            assert entry.logprob == pytest.approx(exact[77], abs=1e-5)
            assert entry.rank == 1 + int((row > row[77]).sum())
            assert entry.top_ids == np.argsort(-row)[:2].tolist()
            assert entry.top_logprobs == pytest.approx(np.sort(exact)[::-1][:2], abs=1e-5)
        else:
            assert (entry.logprob, entry.rank) == (pytest.approx(0.0, abs=1e-5), 1)


def test_logprobs_of_a_row_do_not_depend_on_its_neighbours() -> None:
    logits = rows(5)
    together = token_logprobs(logits, [1, 2, 3, 4, 5], [3] * 5)
    assert together == [token_logprobs(logits[i : i + 1], [i + 1], [3])[0] for i in range(5)]


def test_a_resumed_request_continues_where_it_stopped() -> None:
    params = {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "min_tokens": 4}
    logits = rows(8, 5)
    whole = Sampler(VOCAB, 1)
    whole.admit(admission(**params))
    slot = np.zeros(1, np.int32)
    tokens = [int(whole.sample(logits[i : i + 1].copy(), slot, np.array([i])).token_ids[0]) for i in range(8)]
    resumed = Sampler(VOCAB, 1)
    resumed.admit(replace(admission(**params), output_ids=tokens[:3]))
    rest = [int(resumed.sample(logits[i : i + 1].copy(), slot, np.array([i])).token_ids[0]) for i in range(3, 8)]
    assert rest == tokens[3:]
