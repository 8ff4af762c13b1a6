"""The native mixture of experts alone, on each instruction set, against the reference's NumPy functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sojourn.graph import ops, reference_ops
from sojourn.native import Executor, isas

Array = NDArray[np.float32]

WIDTH, INTERMEDIATE = 48, 40
STEP = reference_ops.Step(np.empty(0, np.int32), np.empty(0, np.intp), [], {})

every_isa = pytest.mark.parametrize("isa", isas())


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def bytes_of(weight: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(weight).view(np.uint8).reshape(-1)


class Mixture:
    """Rows go in by way of an embedding table, which is how rows enter any executor."""

    def __init__(self, rng: np.random.Generator, num_experts: int, top_k: int, normalize: bool) -> None:
        self.top_k, self.normalize = top_k, normalize
        self.router = normal(rng, num_experts, WIDTH) * 3
        self.experts = reference_ops.Experts(
            normal(rng, num_experts, INTERMEDIATE, WIDTH),
            normal(rng, num_experts, INTERMEDIATE, WIDTH),
            normal(rng, num_experts, WIDTH, INTERMEDIATE),
        )

    def reference(self, rows: Array) -> Array:
        value = ops.Value(0, ops.Rows.T, len(self.router))
        op = ops.MoeRoute(value, value, self.top_k, self.normalize)
        route = reference_ops.moe_route(op, STEP, rows @ self.router.T)
        return reference_ops.moe_experts("silu", self.experts, STEP, rows, route)

    def native(self, isa: str, rows: Array, threads: int) -> Array:
        executor = Executor(isa, threads, len(rows))
        x, out = executor.add_buffer(WIDTH), executor.add_buffer(WIDTH)
        scores = executor.add_buffer(len(self.router))
        executor.embed(x, "F32", bytes_of(rows), len(rows), WIDTH, 1.0)
        executor.matmul(x, [self._matrix(executor, self.router)], [scores], [-1], -1)
        gate, up, down = ([self._matrix(executor, one) for one in stack] for stack in self.experts)
        executor.experts(x, scores, out, gate, up, down, self.top_k, self.normalize, "silu")
        result = np.empty((len(rows), WIDTH), np.float32)
        numbers = np.arange(len(rows), dtype=np.int32)
        ends = np.array([0, len(rows)], np.int32)
        executor.forward(numbers, numbers, ends, np.zeros((1, 1), np.int32), out, result)
        return result

    def _matrix(self, executor: Executor, weight: Array) -> int:
        return executor.add_matrix("F32", bytes_of(weight), *weight.shape)


@every_isa
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), normalize=st.booleans(), rows=st.integers(1, 100))
def test_a_mixture_is_that_of_the_reference(isa: str, seed: int, normalize: bool, rows: int) -> None:
    rng = np.random.default_rng(seed)
    num_experts = int(rng.integers(1, 20))
    mixture = Mixture(rng, num_experts, int(rng.integers(1, num_experts + 1)), normalize)
    x = normal(rng, rows, WIDTH) * 4
    np.testing.assert_allclose(mixture.native(isa, x, 1 + seed % 3), mixture.reference(x), rtol=1e-4, atol=1e-5)


@every_isa
def test_equal_scores_go_to_the_lower_experts(isa: str) -> None:
    mixture = Mixture(np.random.default_rng(1), 6, 2, True)
    mixture.router[:] = mixture.router[0]
    x = normal(np.random.default_rng(2), 4, WIDTH)
    np.testing.assert_allclose(mixture.native(isa, x, 1), mixture.reference(x), rtol=1e-4, atol=1e-6)


@every_isa
def test_b41_a_nan_stays_in_its_row(isa: str) -> None:
    mixture = Mixture(np.random.default_rng(1), 6, 2, True)
    x = normal(np.random.default_rng(2), 5, WIDTH)
    clean = mixture.native(isa, x, 2)
    x[3, 7] = np.nan
    found = mixture.native(isa, x, 2)
    assert np.isnan(found[3]).all()
    assert np.delete(found, 3, 0).tobytes() == np.delete(clean, 3, 0).tobytes()


def test_lists_that_do_not_fit_are_refused() -> None:
    executor = Executor(isas()[0], 1, 4)
    x, scores, out = (executor.add_buffer(width) for width in (WIDTH, 2, WIDTH))
    matrix = executor.add_matrix("F32", bytes_of(np.zeros((INTERMEDIATE, WIDTH), np.float32)), INTERMEDIATE, WIDTH)
    with pytest.raises(IndexError, match="lists"):
        executor.experts(x, scores, out, [matrix], [matrix], [matrix], 1, True, "silu")
    with pytest.raises(IndexError, match="expert"):
        executor.experts(x, scores, out, [matrix] * 2, [matrix] * 2, [matrix] * 2, 1, True, "silu")
