"""The scripts under benchmarks/: the arithmetic they judge by, and the plans they drive a backend with."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy import computed, meets
from benchmarks.divergence import Divergence
from benchmarks.rows import ROWS
from tests.models.micro import load, write_directory

VOCAB = 50


def logits(seed: int, rows: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, VOCAB)).astype(np.float32)


def diverged(reference: np.ndarray, subject: np.ndarray) -> Divergence:
    found = Divergence()
    found.add(reference, subject, np.arange(len(reference)) % VOCAB)
    return found


def test_a_model_does_not_diverge_from_itself():
    found = diverged(logits(1), logits(1))
    assert found.mean_kl == 0
    assert found.perplexity_ratio == 1
    assert found.agreed == 40


def test_kl_is_that_of_the_definition():
    reference, subject = logits(1, 3).astype(np.float64), logits(2, 3).astype(np.float64)
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (reference, subject))
    expected = (p * np.log(p / q)).sum(axis=1)
    assert diverged(logits(1, 3), logits(2, 3)).kl == pytest.approx(expected)


def test_a_constant_added_to_all_logits_changes_nothing():
    assert diverged(logits(1), logits(1) + 100).mean_kl == pytest.approx(0, abs=1e-5)


def test_a_uniform_model_is_as_perplexed_as_its_vocabulary_is_large():
    assert diverged(logits(1), np.zeros((40, VOCAB), np.float32)).perplexity == pytest.approx(VOCAB)


def test_the_gate_compares_with_llama_cpp_and_bounds_the_perplexity():
    close, far = diverged(logits(1), logits(1) + 0.001 * logits(2)), diverged(logits(1), logits(2))
    assert meets(close, close)
    assert meets(close, far)
    assert not meets(far, close)
    assert not meets(far, far)  # no further than llama.cpp, but its perplexity is off
    assert meets(close, None)


def test_chunks_of_a_sequence_give_the_logits_of_the_whole(tmp_path):
    path = write_directory("llama", tmp_path / "model")
    ids = [int(token) for token in np.random.default_rng(3).integers(0, 64, 70)]
    whole, *none = computed(load(path, block_size=32), ids, 70)
    parts = list(computed(load(path, block_size=32), ids, 16))
    assert not none
    assert [len(part) for part in parts] == [16, 16, 16, 16, 6]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-4)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_ratio_above_one_means_that_we_are_better(row):
    better, worse = (10.0, 20.0) if row.lower_is_better else (20.0, 10.0)
    assert row.ratio(better, worse) == 2.0


def test_rows_have_prompts_of_their_own_sizes():
    shared = next(row for row in ROWS if row.key == "shared")
    first, second, *_ = shared.load.prompts()
    assert first.split()[:600] == second.split()[:600]
    assert first.split()[600:605] != second.split()[600:605]
