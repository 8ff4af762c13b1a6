"""`sojourn bench offline`: steps of an engine in this process. Prints tables; --json writes the figures.

NumPy comes in here: limit the library pools before importing this file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from sojourn import machine
from sojourn.bench import offline
from sojourn.bench.tables import decode_table, prefill_table
from sojourn.cli.doctor import read_bandwidth
from sojourn.cli.json_report import write_report
from sojourn.cli.options import Settings
from sojourn.cli.progress import ProgressBar, fetch
from sojourn.core.build import build_engine
from sojourn.executor.model import Model
from sojourn.graph import ops
from sojourn.records import EngineInfo

FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """What `bench offline` measures."""

    streams: Sequence[int]
    context_tokens: int  # prompt of each stream in the decode rows
    output_tokens: int
    prefill_tokens: Sequence[int]
    repeats: int


def bench_offline_command(settings: Settings, wanted: Offline, json: Path | None) -> None:
    """Raises StartupError for what can't be built or does not fit."""
    path = fetch(settings.engine.model)
    # Nothing may be found in the cache: every prompt is to be computed.
    cache = dataclasses.replace(settings.engine.cache, enable_prefix_caching=False)
    scheduler = dataclasses.replace(
        settings.engine.scheduler, max_num_seqs=max(settings.engine.scheduler.max_num_seqs, *wanted.streams)
    )
    config = dataclasses.replace(settings.engine, model=str(path), cache=cache, scheduler=scheduler)
    with ProgressBar() as bar:
        engine = build_engine(config, bar.update)
        info = engine.info
        step_bytes = offline.StepBytes(
            weights_read(Model.from_pretrained(str(path)), info.backend),
            info.kv_bytes // (info.num_kv_blocks * info.block_size),
        )
        bar.update("measuring the memory", 0.0)
        bandwidth = read_bandwidth(info.threads)
        decode, prefill = _measure(engine, step_bytes, wanted, bar)
    print(_heading(settings.engine.model, info, bandwidth))
    print(decode_table(decode, bandwidth))
    print()
    print(prefill_table(prefill))
    if json is not None:
        write_report(json, {"info": info, "bandwidth": bandwidth, "decode": decode, "prefill": prefill})


def _measure(
    engine: offline.Engine, step_bytes: offline.StepBytes, wanted: Offline, bar: ProgressBar
) -> tuple[list[offline.DecodeReport], list[offline.PrefillReport]]:
    total = len(wanted.streams) + len(wanted.prefill_tokens)
    decode: list[offline.DecodeReport] = []
    prefill: list[offline.PrefillReport] = []
    offline.measure_prefill(engine, tokens=1, repeats=1)  # the first request pays for pages touched first
    for streams in wanted.streams:
        bar.update("measuring", len(decode), total)
        decode.append(
            offline.measure_decode(
                engine,
                step_bytes,
                streams=streams,
                prompt_tokens=wanted.context_tokens,
                output_tokens=wanted.output_tokens,
                repeats=wanted.repeats,
            )
        )
    for tokens in wanted.prefill_tokens:
        bar.update("measuring", len(decode) + len(prefill), total)
        prefill.append(offline.measure_prefill(engine, tokens=tokens, repeats=wanted.repeats))
    return decode, prefill


def weights_read(model: Model, backend: str) -> int:
    """Bytes of weights that one decode step of one stream reads: all but an embedding that only gives single rows.

    As the file stores them, or in float32 for the reference backend. Of a mixture's experts, as many as a token takes.
    """
    top_k = {op.out: op.top_k for op in model.graph.ops if isinstance(op, ops.MoeRoute)}
    shares: dict[str, float] = {}
    for op in model.graph.ops:
        match op:
            case ops.Linear() | ops.RmsNorm():
                shares[op.weight.name] = 1.0
            case ops.MoeExperts():
                taken = top_k[op.route] / op.gate.shape[0]
                shares |= {weight.name: taken for weight in (op.gate, op.up, op.down)}
            case _:
                pass
    checkpoint = model.checkpoint
    if backend == "reference":
        sizes = {name: FLOAT32_BYTES * math.prod(checkpoint.shape(name)) for name in shares}
    else:
        sizes = {name: checkpoint.tensors[name].data.nbytes for name in shares}
    return round(sum(share * sizes[name] for name, share in shares.items()))


def _heading(model: str, info: EngineInfo, bandwidth: float) -> str:
    return (
        f"model    {model}, {info.architecture}, {info.quantization}\n"
        f"engine   {info.backend}, {info.isa}, {info.threads} threads\n"
        f"machine  {machine.cpu_name()}, {info.threads} threads read {bandwidth / 1e9:.1f} GB/s"
    )
