"""The native backend against its slow twin, and against itself in every arrangement of a step: bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sojourn.config import CacheConfig, EngineConfig
from sojourn.core.build import build_from_model
from sojourn.errors import StartupError
from sojourn.executor.lowering import unsupported
from sojourn.executor.model import Model
from sojourn.executor.native_backend import NativeBackend
from sojourn.native import isas
from tests.graph.plans import make_plan
from tests.models.micro import CASES, golden, write_directory
from tests.weights.conversion import metadata_of, write_gguf

BLOCK = 16
BLOCKS = 64
SLOW_ROTATION: dict[str, Any] = {"rope_parameters": {"rope_theta": 1e9, "rope_type": "default"}}
ONE_CODE = 5e-2  # what the logits of the micro models move when rounding turns one code into its neighbour


def backend(model: Model, *, threads: int = 2, kv_dtype: str = "f16", max_rows: int = 256) -> NativeBackend:
    return model.native_backend(BLOCKS, BLOCK, max_rows=max_rows, threads=threads, kv_dtype=kv_dtype)


def whole(executor: NativeBackend, ids: list[int]) -> NDArray[np.float32]:
    """Logits of every position, computed in one step."""
    table = np.arange(BLOCKS)[None, :]
    return executor.logits(executor.forward(make_plan([(ids, 0)], table)))


@pytest.fixture(scope="module")
def smollm2() -> Model:
    return Model.from_pretrained("smollm2:135m")


@pytest.fixture(scope="module", params=["f16", "int8"])
def kv_dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def twin(smollm2: Model, kv_dtype: str) -> NativeBackend:
    return backend(smollm2, kv_dtype=kv_dtype)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("case", CASES)
def test_micro_models_agree_with_the_goldens(
    case: str, isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every architecture: windows, q/k norms, biases, experts, all kinds of RoPE scaling."""
    monkeypatch.setenv("SOJOURN_ISA", isa)
    model = Model.from_pretrained(str(write_directory(case, tmp_path / "model")))
    expected = golden(case)
    executor = backend(model, kv_dtype="f32")
    assert executor.isa == isa
    found = whole(executor, expected["prompt"].tolist())[expected["positions"]]
    assert np.abs(found - expected["logits"]).max() < 1e-3


def test_an_instruction_set_that_is_not_there_is_refused(smollm2: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOJOURN_ISA", "avx9000")
    with pytest.raises(StartupError, match=r"avx9000.*portable"):
        backend(smollm2)


def test_a_graph_without_native_kernels_says_why(smollm2: Model) -> None:
    assert "block-size" in (unsupported(smollm2.graph, 24) or "")
    assert unsupported(smollm2.graph, BLOCK) is None


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "int8"])
def test_kv_takes_the_memory_that_is_planned_for_it(smollm2: Model, kv_dtype: str) -> None:
    planned = smollm2.kv_bytes_per_token(kv_dtype) * BLOCKS * BLOCK
    assert backend(smollm2, kv_dtype=kv_dtype)._executor.kv_bytes == planned


def test_b78_a_kv_dtype_that_a_backend_lacks_is_refused(smollm2: Model) -> None:
    config = EngineConfig(backend="reference", cache=CacheConfig(kv_cache_dtype="f16"))
    with pytest.raises(StartupError, match=r"f16: the reference backend stores f32 or int8"):
        build_from_model(smollm2, config)


def divergence(exact: NDArray[np.float32], found: NDArray[np.float32]) -> NDArray[np.float64]:
    """KL of the next-token distributions, by row."""
    p, q = (x.astype(np.float64) - x.max(1, keepdims=True) for x in (exact, found))
    p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (p, q))
    by_row: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(1)
    return by_row


def reference_logits(model: Model, ids: list[int], kv_dtype: str) -> NDArray[np.float32]:
    reference = model.reference_backend(BLOCKS, BLOCK, kv_dtype=kv_dtype)
    return reference.logits(reference.forward(make_plan([(ids, 0)], np.arange(BLOCKS)[None, :])))


def test_quantized_weights_stay_close_to_the_reference(smollm2: Model, twin: NativeBackend) -> None:
    """Activations in int8 move the logits a little: mean KL, as llama.cpp is judged."""
    ids = [int(i) for i in np.random.default_rng(3).integers(100, 40_000, 40)] + list(range(1000, 1060))
    assert divergence(reference_logits(smollm2, ids, "f32"), whole(twin, ids)).mean() < 0.01


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    ("case", "changes"),
    [("llama", {}), ("mistral", {}), ("qwen2", {}), ("qwen2", SLOW_ROTATION), ("qwen3", {}), ("gemma3", {})],
    ids=str,
)
def test_int8_kv_agrees_with_the_reference_in_int8(
    case: str, changes: dict[str, Any], isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of both are the same codes up to float rounding before they are coded, so no code is far off."""
    monkeypatch.setenv("SOJOURN_ISA", isa)
    model = Model.from_pretrained(str(write_directory(case, tmp_path / "model", **changes)))
    ids = golden(case)["prompt"].tolist()
    found = whole(backend(model, kv_dtype="int8"), ids)
    coded, exact = (reference_logits(model, ids, kv_dtype) for kv_dtype in ("int8", "f32"))
    assert np.abs(found - coded).max() < ONE_CODE
    assert divergence(coded, found).mean() < 0.1 * divergence(exact, found).mean()


def raise_key_bias(directory: Path, column: int, bfloat16: int) -> None:
    """Gives one column of every KV head of every layer's K this bias."""
    file = directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:start]).items():
        if name.endswith("k_proj.bias"):
            first, last = entry["data_offsets"]
            bias = np.frombuffer(content, np.uint16, (last - first) // 2, start + first).copy()
            bias.reshape(2, -1)[:, column] = bfloat16
            content[start + first : start + last] = bias.tobytes()
    file.write_bytes(content)


@pytest.mark.parametrize("native", [True, False])
def test_codes_are_not_spent_on_a_large_bias_of_k(native: bool, tmp_path: Path) -> None:
    """Qwen2 has such ones. In a column that turns slowly it is no part of the codes, in a fast one it is."""
    gaps = {}
    for column in (1, 7):
        directory = write_directory("qwen2", tmp_path / str(column), **SLOW_ROTATION)
        raise_key_bias(directory, column, 0x4348)  # 200
        model, ids = Model.from_pretrained(str(directory)), golden("qwen2")["prompt"].tolist()
        exact = reference_logits(model, ids, "f32")
        if native:
            found = whole(backend(model, kv_dtype="int8"), ids)
        else:
            found = reference_logits(model, ids, "int8")
        gaps[column] = divergence(exact, found).mean()
    assert gaps[7] < 0.01 * gaps[1]


def test_the_fused_arg_max_is_that_of_the_logits(twin: NativeBackend) -> None:
    hidden = twin.forward(make_plan([(list(range(900, 1000)), 0)], np.arange(BLOCKS)[None, :]))
    logits = twin.logits(hidden)
    ids, maxima = twin.argmax(hidden)
    assert ids.tolist() == logits.argmax(axis=1).tolist()
    assert maxima.tobytes() == logits.max(axis=1).tobytes()


def test_b41_a_nan_stays_in_its_row(twin: NativeBackend) -> None:
    hidden = twin.forward(make_plan([(list(range(900, 904)), 0)], np.arange(BLOCKS)[None, :]))
    clean = twin.argmax(hidden)[0]
    hidden[1, 5] = np.nan
    ids, maxima = twin.argmax(hidden)
    assert np.isnan(maxima).tolist() == [False, True, False, False]
    assert np.isnan(twin.logits(hidden)).any(axis=1).tolist() == [False, True, False, False]
    assert np.delete(ids, 1).tolist() == np.delete(clean, 1).tolist()


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_the_number_of_threads_changes_no_bit(smollm2: Model, twin: NativeBackend, kv_dtype: str, threads: int) -> None:
    ids = list(range(500, 640))
    assert whole(backend(smollm2, threads=threads, kv_dtype=kv_dtype), ids).tobytes() == whole(twin, ids).tobytes()


def in_random_chunks(
    executor: NativeBackend, prompts: list[list[int]], rng: np.random.Generator
) -> list[NDArray[np.float32]]:
    """Logits of each prompt's last token, the prompts computed together in random chunks and scattered blocks."""
    tables = rng.permutation(BLOCKS)[: len(prompts) * 8].reshape(len(prompts), 8)
    done = [0] * len(prompts)
    last: dict[int, NDArray[np.float32]] = {}
    while len(last) < len(prompts):
        chunks, rows = [], []
        for index, ids in enumerate(prompts):
            count = int(min(rng.integers(0, 40), len(ids) - done[index]))
            if count:
                chunks.append((ids[done[index] : done[index] + count], done[index]))
                rows.append(index)
                done[index] += count
        if not chunks:
            continue
        plan = make_plan(chunks, tables[rows])
        logits = executor.logits(executor.forward(plan)[plan.cu_seqlens_q[1:] - 1])
        for index, row in zip(rows, logits, strict=True):
            if done[index] == len(prompts[index]):
                last[index] = row
    return [last[index] for index in range(len(prompts))]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_batching_chunking_and_paging_change_no_bit(smollm2: Model, twin: NativeBackend, seed: int) -> None:
    """Several sequences in random chunks, mixed steps and scattered blocks, against each one alone in one step."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 49_000, rng.integers(1, 120)).tolist() for _ in range(rng.integers(2, 7))]
    alone = [whole(twin, ids)[-1] for ids in prompts]
    for found, expected in zip(in_random_chunks(twin, prompts, rng), alone, strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.fixture(scope="module", params=["BF16", "Q8_0"])
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A mixture of experts, its weights as floats and in quantized blocks."""
    directory = tmp_path_factory.mktemp("mixture")
    original = Model.from_pretrained(str(write_directory("qwen3_moe", directory / "model")))
    if request.param == "BF16":
        return original
    config, tensors = CASES["qwen3_moe"]["config"], original.checkpoint.tensors
    file = write_gguf(
        directory / "model.gguf",
        "qwen3moe",
        {name: tensors[name].float32() for name in tensors},
        metadata_of(config, "qwen3moe"),
        heads=(config["num_attention_heads"], config["num_key_value_heads"]),
        format=request.param,
    )
    return Model.from_pretrained(str(file))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_an_expert_computes_a_row_alike_in_any_company(mixture: Model, seed: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    vocab = mixture.config.vocab_size
    prompts = [rng.integers(0, vocab, rng.integers(1, 100)).tolist() for _ in range(rng.integers(2, 7))]
    single = backend(mixture, threads=1)
    alone = [whole(single, ids)[-1] for ids in prompts]
    for found, expected in zip(in_random_chunks(backend(mixture, threads=threads), prompts, rng), alone, strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("isa", isas())
def test_quantized_experts_stay_close_to_the_reference(
    mixture: Model, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations in int8 make a row err by 2 to 3%, as in the dense micro models; a row that chose others, by more."""
    monkeypatch.setenv("SOJOURN_ISA", isa)
    ids = np.random.default_rng(5).integers(0, mixture.config.vocab_size, 60).tolist()
    reference = mixture.reference_backend(BLOCKS, BLOCK)
    exact = reference.logits(reference.forward(make_plan([(ids, 0)], np.arange(BLOCKS)[None, :])))
    found = whole(backend(mixture, kv_dtype="f32"), ids)
    errors = np.abs(found - exact).mean(axis=1) / np.abs(exact).mean(axis=1)
    assert np.median(errors) < 0.04
