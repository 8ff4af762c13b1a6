"""Builds an engine from its options: loads the model, lays out the memory, wires scheduler, runner and sampler."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from sojourn import machine
from sojourn.config import EngineConfig
from sojourn.core.engine_core import EngineCore
from sojourn.core.kv_manager import KVManager
from sojourn.core.scheduler import Scheduler
from sojourn.core.step_pace import StepPace
from sojourn.errors import StartupError
from sojourn.executor.lowering import unsupported
from sojourn.executor.memory_plan import MemoryPlan, longest_request, plan_memory
from sojourn.executor.model import Model
from sojourn.executor.native_backend import NativeBackend
from sojourn.executor.native_sampler import NativeSampler
from sojourn.executor.runner import Backend, ModelRunner, TokenSampler
from sojourn.executor.sampler import Sampler
from sojourn.executor.scripted import Script, ScriptedBackend
from sojourn.records import EngineInfo

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]  # a stage, and the fraction of it that is done


def build_engine(config: EngineConfig, on_progress: OnProgress | None = None) -> EngineCore:
    """The engine these options describe, weights loaded; their `model` is a path by now. Raises StartupError."""
    if config.backend == "scripted":
        return _build_scripted(config)
    return build_from_model(Model.from_path(Path(config.model)), config, on_progress)


def build_from_model(model: Model, config: EngineConfig, on_progress: OnProgress | None = None) -> EngineCore:
    """An engine for a model that is already open."""
    started = time.monotonic()
    threads = config.threads or machine.usable_threads()[0]
    block_size, obstacle = config.cache.block_size, unsupported(model.graph, config.cache.block_size)
    if config.backend == "native" and obstacle is not None:
        raise StartupError(f"--backend native can't run {config.model}: {obstacle}. Use --backend reference.")
    native = config.backend != "reference" and obstacle is None
    kv_dtype = _kv_dtype(config.cache.kv_cache_dtype, native)
    longest = longest_request(config.max_model_len, model.config.max_position_embeddings)

    def plan_for(free_bytes: int) -> MemoryPlan:
        return plan_memory(
            config.cache,
            bytes_per_token=model.kv_bytes_per_token(kv_dtype),
            model_context=model.config.max_position_embeddings,
            wanted_len=config.max_model_len,
            max_num_seqs=config.scheduler.max_num_seqs,
            free_bytes=max(0, free_bytes),
        )

    def on_weight(loaded: int, total: int) -> None:
        if on_progress is not None:
            on_progress("loading weights", loaded / total)

    backend: Backend
    if native:
        backend = model.native_backend(
            0,
            block_size,
            max_rows=config.scheduler.step_tokens,
            threads=threads,
            kv_dtype=kv_dtype,
            on_weight=on_weight,
        )
        # Asked now that the weights have taken what they take.
        free_bytes = machine.memory_limit_bytes()
        plan = plan_for(free_bytes - backend.step_bytes(config.scheduler.max_num_seqs, longest))
        backend.allocate_kv(plan.num_blocks)
        name, isa, weight_bytes = "native", backend.isa, backend.weight_bytes
        why = backend.isa_reason
    else:
        weight_bytes = 4 * model.checkpoint.num_parameters  # every weight in float32
        plan = plan_for(machine.memory_limit_bytes() - weight_bytes)
        backend = model.reference_backend(
            plan.num_blocks, block_size, threads=threads, kv_dtype=kv_dtype, on_weight=on_weight
        )
        name, isa = "reference" if obstacle is None else f"reference: {obstacle}", "NumPy"
        why = "--backend reference" if obstacle is None else obstacle
    logger.info("kernels: %s (%s); K and V in %s (%s)", isa, why, kv_dtype, config.cache.kv_cache_dtype)
    info = EngineInfo(
        model=config.model,
        architecture=model.config.architecture,
        quantization=model.checkpoint.quantization,
        num_parameters=model.checkpoint.num_parameters,
        vocab_size=model.config.vocab_size,
        max_model_len=plan.max_model_len,
        max_model_len_reason=plan.reason,
        num_kv_blocks=plan.num_blocks,
        block_size=block_size,
        kv_bytes=plan.kv_bytes,
        kv_dtype=kv_dtype,
        weight_bytes=weight_bytes,
        backend=name,
        threads=threads,
        isa=isa,
        load_seconds=time.monotonic() - started,
    )
    return _assemble(config, backend, plan, info)


def _kv_dtype(wanted: str, native: bool) -> str:
    """What K and V are stored in. Raises StartupError for what the backend can't store."""
    offered = ("f16", "f32", "int8") if native else ("f32", "int8")
    if wanted == "auto":
        return offered[0]
    if wanted not in offered:
        backend = "native" if native else "reference"
        raise StartupError(f"--kv-cache-dtype {wanted}: the {backend} backend stores {' or '.join(offered)}.")
    return wanted


def _build_scripted(config: EngineConfig) -> EngineCore:
    script = Script.load(Path(config.script)) if config.script is not None else Script()
    plan = plan_memory(
        config.cache,
        bytes_per_token=4,
        model_context=script.max_model_len,
        wanted_len=config.max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        free_bytes=machine.memory_limit_bytes(),
    )
    info = EngineInfo(
        model=config.model,
        architecture="scripted",
        quantization="none",
        num_parameters=0,
        vocab_size=script.vocab_size,
        max_model_len=plan.max_model_len,
        max_model_len_reason=plan.reason,
        num_kv_blocks=plan.num_blocks,
        block_size=config.cache.block_size,
        kv_bytes=plan.kv_bytes,
        kv_dtype="none",
        weight_bytes=0,
        backend="scripted",
        threads=1,
        isa="none",
        load_seconds=0.0,
    )
    backend = ScriptedBackend(script, plan.num_blocks, config.cache.block_size)
    return _assemble(config, backend, plan, info)


def _assemble(config: EngineConfig, backend: Backend, plan: MemoryPlan, info: EngineInfo) -> EngineCore:
    kv = KVManager(plan.num_blocks, config.cache.block_size, enable_prefix_caching=config.cache.enable_prefix_caching)
    scheduler = Scheduler(
        kv,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.step_tokens,
        pace=StepPace(config.scheduler.max_step_stretch) if config.scheduler.max_num_batched_tokens is None else None,
    )
    sampler = _sampler(backend, info.vocab_size, config)
    return EngineCore(scheduler, ModelRunner(backend, sampler), info)


def _sampler(backend: Backend, vocab_size: int, config: EngineConfig) -> TokenSampler:
    max_num_seqs, mode = config.scheduler.max_num_seqs, config.logprobs_mode
    if isinstance(backend, NativeBackend):
        return NativeSampler(vocab_size, max_num_seqs, isa=backend.isa, pool=backend.pool, logprobs_mode=mode)
    return Sampler(vocab_size, max_num_seqs, logprobs_mode=mode)
