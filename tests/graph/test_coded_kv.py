"""int8 storage of the reference executor, and the centres its keys are coded relative to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.executor.model import Model
from sojourn.graph import GraphBuilder, RopeParameters
from sojourn.graph.key_centers import key_centers
from sojourn.graph.kv_storage import CodedKVStorage, KVStorage
from tests.graph.plans import make_plan
from tests.models.micro import write_directory

HEADS, DIM = 2, 16
RNG = np.random.default_rng(3)


def layers() -> Any:
    g = GraphBuilder()
    x = g.embedding("x", vocab_size=4, width=HEADS * DIM)
    x = g.attention(x, x, x, head_dim=DIM, scale=1.0)
    return g.finish(g.select_rows(x)).layers


def rows(tokens: int) -> np.ndarray:
    return RNG.standard_normal((tokens, HEADS * DIM)).astype(np.float32)


def test_codes_do_not_depend_on_what_is_written_together() -> None:
    k, v, slots = rows(20), rows(20), RNG.permutation(24)[:20]
    whole, pieces = (CodedKVStorage(layers(), 3, 8, {}) for _ in range(2))
    whole.write(0, slots, k, v)
    for part in np.split(np.arange(20), [1, 8, 9]):
        pieces.write(0, slots[part], k[part], v[part])
    for name in ("keys", "values", "key_scales", "value_scales"):
        np.testing.assert_array_equal(getattr(whole, name)[0], getattr(pieces, name)[0])


def test_what_is_read_is_what_was_written_but_for_the_codes() -> None:
    center = RNG.standard_normal((HEADS, DIM)).astype(np.float32) * 100
    k, v = rows(20) + center.reshape(-1), rows(20)
    exact, coded = KVStorage(layers(), 4, 8), CodedKVStorage(layers(), 4, 8, {0: center})
    table = np.array([2, 0, 3], np.int32)
    slots = table[np.arange(20) // 8].astype(np.intp) * 8 + np.arange(20) % 8
    for storage in (exact, coded):
        storage.write(0, slots, k, v)
    for ours, theirs in zip(coded.read(0, table, 5, 19), exact.read(0, table, 5, 19), strict=True):
        assert ours.shape == theirs.shape == (14, HEADS, DIM)
        assert 0 < np.abs(ours - theirs).max() < 0.03


def test_the_cost_of_a_block_is_what_is_allocated() -> None:
    kv = CodedKVStorage(layers(), 3, 8, {})
    arrays = (*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales)
    assert CodedKVStorage.block_bytes(layers(), 8) * 3 == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3", "gemma3"])
def test_a_model_in_int8_stays_close_to_itself(case: str, tmp_path: Path) -> None:
    model = Model.from_pretrained(str(write_directory(case, tmp_path / case)))
    plan = make_plan([(list(range(40, 90)), 0)], np.arange(4)[None, :])
    exact, coded = (model.reference_backend(4, 16, kv_dtype=kv_dtype).forward(plan) for kv_dtype in ("f32", "int8"))
    gap = np.abs(exact - coded).max() / np.abs(exact).max()
    assert 0 < gap < 0.05


def biased_attention(softcap: float | None) -> Any:
    g = GraphBuilder()
    x = g.embedding("x", vocab_size=4, width=32)
    k = g.linear(x, "k", HEADS * DIM, bias="k.bias")
    k = g.rope(k, head_dim=DIM, parameters=RopeParameters(theta=1e9))
    x = g.attention(x, k, x, head_dim=DIM, scale=1.0, softcap=softcap)
    return g.finish(g.select_rows(x))


def test_a_centre_is_the_bias_where_the_rotation_is_slow() -> None:
    bias = RNG.standard_normal(HEADS * DIM).astype(np.float32)
    (center,) = key_centers(biased_attention(None), lambda name: bias).values()
    slow = np.tile(np.arange(8) >= 5, 2)  # 1e9 ** -(5 / 8) is 2.4e-6 radians a position, 1e9 ** -(4 / 8) is 3.2e-5
    np.testing.assert_array_equal(center, bias.reshape(HEADS, DIM) * slow)


def test_a_soft_cap_sees_the_shift_so_there_is_no_centre() -> None:
    assert not key_centers(biased_attention(30.0), lambda name: np.ones(HEADS * DIM, np.float32))


@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma3"])
def test_without_a_bias_there_is_no_centre(case: str, tmp_path: Path) -> None:
    model = Model.from_pretrained(str(write_directory(case, tmp_path / case)))
    assert not key_centers(model.graph, lambda name: model.checkpoint.tensors[name].float32())
