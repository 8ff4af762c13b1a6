"""What an engine settles on while it is built, and what it says about that: kernels, types, memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sojourn import machine
from sojourn.config import CacheConfig, EngineConfig, SchedulerConfig
from sojourn.core import build
from sojourn.core.engine_core import EngineCore
from sojourn.errors import StartupError
from sojourn.executor.model import Model
from sojourn.executor.native_backend import NativeBackend
from sojourn.native import isas
from tests.models.micro import CASES, write_directory

CASE = next(name for name in CASES if "moe" not in name)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model.from_path(write_directory(CASE, tmp_path / "model"))


def built(model: Model, **options: object) -> EngineCore:
    options.setdefault("cache", CacheConfig(num_kv_blocks=8))
    return build.build_from_model(model, EngineConfig(model="micro", threads=1, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(("backend", "expected"), [("native", "f16"), ("reference", "f32")])
def test_b78_auto_takes_the_backends_own_type_and_says_so(
    model: Model, backend: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="sojourn.core.build"):
        info = built(model, backend=backend).info
    assert info.kv_dtype == expected
    assert f"kernels: {info.isa} (" in caplog.text
    assert f"K and V in {expected} (auto)" in caplog.text


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "int8"])
def test_b78_an_explicit_type_is_honoured(model: Model, kv_dtype: str) -> None:
    info = built(model, backend="native", cache=CacheConfig(num_kv_blocks=8, kv_cache_dtype=kv_dtype)).info
    assert info.kv_dtype == kv_dtype


def test_b78_a_type_the_backend_does_not_have_is_refused_and_not_swapped(model: Model) -> None:
    with pytest.raises(StartupError, match=r"--kv-cache-dtype f16: the reference backend stores f32"):
        built(model, backend="reference", cache=CacheConfig(num_kv_blocks=8, kv_cache_dtype="f16"))


@pytest.mark.parametrize("isa", isas())
def test_b78_forced_kernels_are_the_ones_that_are_used(model: Model, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOJOURN_ISA", isa)
    assert built(model, backend="native").info.isa == isa


def test_b77_kv_gets_half_of_what_is_free_beside_the_weights_and_the_largest_step(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is asked for when the weights are there, and the step's part is taken from it."""
    loaded: list[bool] = []
    step_bytes, free = 3 * 10**6, 5 * 10**6
    monkeypatch.setattr(NativeBackend, "step_bytes", lambda self, seqs, context: step_bytes)
    monkeypatch.setattr(NativeBackend, "allocate_kv", lambda self, blocks: loaded.append(True))
    monkeypatch.setattr(machine, "memory_limit_bytes", lambda: free)
    info = built(
        model,
        backend="native",
        cache=CacheConfig(block_size=16),
        scheduler=SchedulerConfig(max_num_seqs=1000),
    ).info
    per_block = 16 * model.kv_bytes_per_token("f16")
    assert loaded
    assert info.num_kv_blocks == min((free - step_bytes) // 2 // per_block, 1000 * -(-info.max_model_len // 16))
    assert info.kv_bytes <= (free - step_bytes) / 2
