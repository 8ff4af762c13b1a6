"""Engines for tests: the real scheduler, runner and sampler over the scripted backend."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.core.engine_core import EngineCore
from sojourn.core.kv_manager import KVManager
from sojourn.core.request import Request
from sojourn.core.scheduler import Scheduler
from sojourn.core.step_pace import StepPace
from sojourn.executor.runner import ModelRunner
from sojourn.executor.sampler import Sampler
from sojourn.executor.scripted import Script, ScriptedBackend
from sojourn.records import EngineInfo, EngineRequest, SamplingParams, TokenDelta

VOCAB = 1024


def make_engine(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 16,
    budget: int = 64,
    caching: bool = True,
    script: Script | None = None,
    pace: StepPace | None = None,
) -> EngineCore:
    script = script or Script(vocab_size=VOCAB)
    kv = KVManager(num_blocks, block_size, enable_prefix_caching=caching)
    scheduler = Scheduler(kv, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, pace=pace)
    backend = ScriptedBackend(script, num_blocks, block_size)
    runner = ModelRunner(backend, Sampler(script.vocab_size, max_num_seqs))
    info = EngineInfo(
        model="scripted",
        architecture="scripted",
        quantization="none",
        num_parameters=0,
        vocab_size=script.vocab_size,
        max_model_len=min(script.max_model_len, num_blocks * block_size),
        max_model_len_reason="test",
        num_kv_blocks=num_blocks,
        block_size=block_size,
        kv_bytes=0,
        kv_dtype="f16",
        weight_bytes=0,
        backend="scripted",
        threads=1,
        isa="none",
        load_seconds=0.0,
    )
    return EngineCore(scheduler, runner, info)


def add(
    engine: EngineCore,
    request_id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int | None = 8,
    priority: int = 0,
    cache_salt: str = "",
    eos: Sequence[int] = (0,),
    **params: object,
) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **params})
    return engine.add_request(
        EngineRequest(
            request_id=request_id,
            prompt_ids=list(prompt),
            params=sampling,
            priority=priority,
            cache_salt=cache_salt,
            eos_token_ids=tuple(eos),
        )
    )


def run(engine: EngineCore, *, max_steps: int = 10_000) -> list[TokenDelta]:
    """Step until nothing is left, auditing after each step."""
    deltas: list[TokenDelta] = []
    for _ in range(max_steps):
        if not engine.has_unfinished():
            return deltas
        deltas += engine.step()
        engine.audit()
    raise AssertionError(f"still unfinished after {max_steps} steps")


def chunks_of(engine: EngineCore, request_id: str) -> list[tuple[int, int]]:
    """(first position, count) of each step that computed tokens of the request."""
    return [(first, n) for record in engine.step_log for rid, first, n in record.scheduled if rid == request_id]
