"""The interpreter against its naive twin, and the promise that batching, chunking and block placement do not matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.graph import GraphBuilder
from sojourn.graph.kv_storage import KVStorage
from sojourn.graph.reference import ReferenceExecutor
from sojourn.models import ModelConfig
from sojourn.weights.checkpoint import open_checkpoint
from tests.graph import naive
from tests.graph.plans import make_plan, run_whole
from tests.models.micro import load, write_directory

TOLERANCE = 2e-4  # float32 sums in another order, on logits of about 6
ARCHITECTURES = ["llama", "llama-dynamic", "llama-yarn", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma3"]
IDS = np.random.default_rng(7).integers(3, 256, size=(4, 60)).astype(np.int32)


@pytest.fixture(scope="module")
def executors(tmp_path_factory):
    return {case: load(write_directory(case, tmp_path_factory.mktemp(case))) for case in ARCHITECTURES}


@pytest.mark.parametrize("case", ["llama", "mistral"])
def test_equals_the_naive_twin(case, tmp_path):
    directory = write_directory(case, tmp_path)
    checkpoint = open_checkpoint(directory)
    weights = {name: checkpoint.tensors[name].float32() for name in checkpoint.tensors}
    expected = naive.logits(ModelConfig.from_hf(checkpoint.config), weights, IDS[0])
    assert np.abs(run_whole(load(directory), IDS[0]) - expected).max() < TOLERANCE


@st.composite
def schedules(draw):
    """Steps of (sequence, number of tokens), interleaved at will, that compute each sequence to its end."""
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    left = list(lengths)
    steps = []
    while any(left):
        takers = draw(st.lists(st.sampled_from([i for i, n in enumerate(left) if n]), unique=True, min_size=1))
        step = [(i, draw(st.integers(1, left[i]))) for i in takers]
        for i, count in step:
            left[i] -= count
        steps.append(step)
    return lengths, steps


@settings(max_examples=40, deadline=None)
@given(case=st.sampled_from(ARCHITECTURES), schedule=schedules(), seed=st.integers(0, 2**32 - 1))
def test_any_chunking_batching_and_block_placement_gives_the_same_hidden_states(executors, case, schedule, seed):
    executor, (lengths, steps) = executors[case], schedule
    kv = executor.kv
    for array in (*kv.keys, *kv.values):
        array.fill(np.nan)  # whatever an earlier owner left in a block must not be read
    tables = np.random.default_rng(seed).permutation(kv.num_blocks)[: 4 * 8].reshape(4, 8)
    done = [0] * len(lengths)
    rows = [[] for _ in lengths]
    for step in steps:
        chunks = [(IDS[i, done[i] : done[i] + count], done[i]) for i, count in step]
        hidden = executor.forward(make_plan(chunks, tables[[i for i, _ in step]]))
        offset = 0
        for i, count in step:
            rows[i].append(hidden[offset : offset + count])
            offset += count
            done[i] += count
    for i, length in enumerate(lengths):
        whole = executor.forward(make_plan([(IDS[i, :length], 0)], tables[[i]]))
        np.testing.assert_allclose(np.concatenate(rows[i]), whole, atol=TOLERANCE, rtol=1e-4)


def test_sequences_may_share_blocks_computed_in_the_same_step(executors):
    """All K and V of a step is written before any is read: a prefix hit on blocks that this very step fills."""
    executor = executors["llama"]
    size = executor.kv.block_size
    expected = run_whole(executor, IDS[0][: size + 5])
    shared, own, other = 11, 12, 13
    tables = np.array([[shared, own], [shared, other]])
    plan = make_plan([(IDS[0][size : size + 5], size), (IDS[0][: size + 1], 0)], tables)
    logits = executor.logits(executor.forward(plan))
    assert np.abs(logits[:5] - expected[size:]).max() < TOLERANCE


def test_nan_of_one_sequence_stays_with_it(executors):
    executor = executors["qwen3_moe"]
    alone = run_whole(executor, IDS[0])
    tables = np.arange(16).reshape(2, 8)
    executor.forward(make_plan([(IDS[1][:8], 0)], tables[[1]]))
    for array in executor.kv.keys:
        array[tables[1]] = np.nan
    hidden = executor.forward(make_plan([(IDS[0], 0), (IDS[1][8:20], 8)], tables))
    assert np.isnan(hidden[len(IDS[0]) :]).all()
    assert np.abs(executor.logits(hidden[: len(IDS[0])]) - alone).max() < TOLERANCE


def test_long_prefill_equals_short_chunks_across_query_tiles(executors, tmp_path):
    """The window starts in another block for each tile of queries."""
    executor = executors["mistral"]
    ids = np.random.default_rng(3).integers(3, 256, size=300)
    whole = run_whole(executor, ids)
    table = np.arange(executor.kv.num_blocks)[None, ::-1]
    parts = [executor.forward(make_plan([(ids[start : start + 50], start)], table)) for start in range(0, 300, 50)]
    assert np.abs(executor.logits(np.concatenate(parts)) - whole).max() < TOLERANCE


def test_each_weight_is_loaded_once(tmp_path):
    g = GraphBuilder()
    x = g.embedding("embed", vocab_size=16, width=4)
    graph = g.finish(g.linear(g.select_rows(x), "head", 16, alternative="embed")).bind({"embed": (16, 4)})
    asked = []

    def load_weight(name):
        asked.append(name)
        return np.arange(64, dtype=np.float32).reshape(16, 4)

    executor = ReferenceExecutor(graph, load_weight, KVStorage(graph.layers, 2, 4))
    assert asked == ["embed"]
    row = np.arange(12, 16, dtype=np.float32)
    np.testing.assert_array_equal(run_whole(executor, [3])[0], np.arange(64).reshape(16, 4) @ row)


def elementwise(wire, x):
    """Runs one op over rows x [T, width], given as the embedding of tokens 0 to T - 1."""
    g = GraphBuilder()
    value = g.embedding("x", vocab_size=len(x), width=x.shape[1])
    graph = g.finish(g.select_rows(wire(g, value)))
    executor = ReferenceExecutor(graph, lambda name: x, KVStorage(graph.layers, 4, 4))
    return executor.forward(make_plan([(range(len(x)), 0)], np.arange(4)[None, :]))


def test_softcap_bounds_and_scale_multiplies():
    x = np.array([[-1e9, -1.0, 0.0, 0.5, 1e9]], np.float32)
    np.testing.assert_allclose(elementwise(lambda g, v: g.softcap(v, 30.0), x)[0], 30 * np.tanh(x[0] / 30), rtol=1e-6)
    np.testing.assert_allclose(elementwise(lambda g, v: g.scale(v, -2.0), x), x * -2)


def test_activations_are_exact_at_extremes():
    x = np.array([[-100.0, -1.0, 0.0, 1.0, 100.0]], np.float32)
    silu = elementwise(lambda g, v: g.glu(v, v, "silu"), x)[0]
    np.testing.assert_allclose(silu, [0, 0.26894142, 0, 0.7310586, 1e4], atol=1e-6, rtol=1e-6)
    gelu = elementwise(lambda g, v: g.glu(v, v, "gelu_tanh"), x)[0]
    np.testing.assert_allclose(gelu, [0, 0.158808, 0, 0.841192, 1e4], atol=1e-6, rtol=1e-6)


def test_routing_breaks_ties_by_the_lower_expert_and_normalizes():
    x = np.log(np.array([[1, 1, 1, 1], [8, 1, 1, 6]], np.float32))
    route = elementwise(lambda g, v: g.moe_route(v, top_k=2, normalize=True), x)
    np.testing.assert_allclose(route, [[0.5, 0.5, 0, 0], [8 / 14, 0, 0, 6 / 14]], rtol=1e-6)
    route = elementwise(lambda g, v: g.moe_route(v, top_k=2, normalize=False), x)
    np.testing.assert_allclose(route, [[0.25, 0.25, 0, 0], [0.5, 0, 0, 0.375]], rtol=1e-6)


def test_attention_softcap_and_window_are_applied():
    """Three tokens that all have the same key: without a cap the values are averaged over the window."""
    x = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 6.0]], np.float32)
    g = GraphBuilder()
    value = g.embedding("x", vocab_size=3, width=2)
    q, k = (g.linear(value, "pick", 2) for _ in range(2))
    attended = g.attention(q, k, value, head_dim=2, scale=1.0, window=2, softcap=5.0)
    graph = g.finish(g.select_rows(attended))
    weights = {"x": x, "pick": np.array([[1, 0], [0, 1]], np.float32)}
    executor = ReferenceExecutor(graph, weights.__getitem__, KVStorage(graph.layers, 1, 4))
    out = executor.forward(make_plan([([0, 1, 2], 0)], np.zeros((1, 1))))
    scores = 5 * np.tanh(np.array([4.0, 40.0]) / 5)  # of the third token against the second and itself
    share = np.exp(scores[1]) / np.exp(scores).sum()
    np.testing.assert_allclose(out[2], [2.0, 6 * share], rtol=1e-5)


def test_kv_storage_knows_its_cost():
    graph_layers = load_layers()
    kv = KVStorage(graph_layers, num_blocks=3, block_size=8)
    stored = sum(array.nbytes for array in (*kv.keys, *kv.values))
    assert KVStorage.block_bytes(graph_layers, 8) * 3 == stored
    assert kv.capacity == 24


def load_layers():
    g = GraphBuilder()
    x = g.embedding("x", vocab_size=4, width=8)
    x = g.attention(x, x, x, head_dim=4, scale=1.0)
    x = g.attention(x, x, x, head_dim=8, scale=1.0)
    return g.finish(g.select_rows(x)).layers
