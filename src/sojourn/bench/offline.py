"""Steps an engine without server or text and times its steps. Builds no engine: whoever calls hands one in.

Prompts are random token ids from a seeded generator and end-of-text is ignored, so lengths are fixed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import msgspec

from sojourn.bench.spread import median
from sojourn.errors import StartupError
from sojourn.records import EngineInfo, EngineRequest, SamplingParams, TokenDelta

SEED = 1
OnProgress = Callable[[str, float], None]  # what is measured, and the fraction of it that is done


class Step(Protocol):
    """One entry of the engine's step log; seconds."""

    @property
    def start(self) -> float: ...
    @property
    def duration(self) -> float: ...
    @property
    def compute(self) -> float: ...
    @property
    def sample(self) -> float: ...
    @property
    def scheduled(self) -> Sequence[tuple[str, int, int]]: ...


class StepLog(Protocol):
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Step]: ...


class Engine(Protocol):
    """The part of the engine core that is needed to run requests."""

    @property
    def info(self) -> EngineInfo: ...
    @property
    def step_log(self) -> StepLog: ...
    def add_request(self, request: EngineRequest) -> object: ...
    def abort(self, request_ids: Iterable[str]) -> None: ...
    def has_unfinished(self) -> bool: ...
    def step(self) -> list[TokenDelta]: ...


class DecodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One decode step with `streams` rows, seconds: medians over all steps of a repeat, then over the repeats.

    `step_s` is from the start of a step to the start of the next; `other_s` is what of it is neither forward pass nor
    sampling: scheduling, bookkeeping, and the caller's loop.
    """

    streams: int
    context: float  # mean number of positions a row attends to
    tok_s: float
    step_s: float
    forward_s: float
    sample_s: float
    other_s: float
    bytes_per_step: int


class PrefillReport(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from adding one prompt to its first output token, median of the repeats."""

    tokens: int
    seconds: float
    tok_s: float


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What a decode step must read: the weights once, and K and V of every position that a row attends to."""

    weights: int
    kv_per_token: int

    def of(self, streams: int, context: float) -> int:
        return self.weights + round(streams * context * self.kv_per_token)


def measure_decode(
    engine: Engine, step_bytes: StepBytes, *, streams: int, prompt_tokens: int, output_tokens: int, repeats: int
) -> DecodeReport:
    """Runs `streams` requests side by side, `repeats` times. Raises StartupError where they do not run all at once."""
    runs = [_decode_steps(engine, streams, prompt_tokens, output_tokens, repeat) for repeat in range(repeats)]

    def middle(part: Callable[[Step, float], float]) -> float:
        return median([median([part(step, period) for step, period in run]) for run in runs])

    step_s = middle(lambda _, period: period)
    context = prompt_tokens + output_tokens / 2
    return DecodeReport(
        streams=streams,
        context=context,
        tok_s=streams / step_s,
        step_s=step_s,
        forward_s=middle(lambda step, _: step.compute),
        sample_s=middle(lambda step, _: step.sample),
        other_s=middle(lambda step, period: period - step.compute - step.sample),
        bytes_per_step=step_bytes.of(streams, context),
    )


def measure_prefill(engine: Engine, *, tokens: int, repeats: int) -> PrefillReport:
    """Computes one prompt of `tokens` at a time, each of its own so that no prefix is found in the cache."""
    seconds = []
    for repeat in range(repeats):
        _add(engine, f"prefill-{tokens}-{repeat}", _random_ids(engine, tokens, repeat), max_tokens=1)
        start = time.perf_counter()
        _run(engine)
        seconds.append(time.perf_counter() - start)
    middle = median(seconds)
    return PrefillReport(tokens=tokens, seconds=middle, tok_s=tokens / middle)


def _decode_steps(
    engine: Engine, streams: int, prompt_tokens: int, output_tokens: int, repeat: int
) -> list[tuple[Step, float]]:
    """The steps in which every stream got one token, each with the seconds until the next one began."""
    before = len(engine.step_log)
    names = [f"decode-{streams}-{repeat}-{stream}" for stream in range(streams)]
    # Streams begin one after the other, as their prompts are done: the first ones must last until the others run.
    most = output_tokens + 4 * streams + prompt_tokens
    for stream, name in enumerate(names):
        _add(engine, name, _random_ids(engine, prompt_tokens, 1000 * repeat + stream), max_tokens=most)
    together = 0
    while engine.has_unfinished() and together <= output_tokens:
        together += len(_step(engine)) == streams
    engine.abort(names)
    kept = list(engine.step_log)
    new = kept[max(0, len(kept) - (len(engine.step_log) - before)) :]
    found = [
        (step, after.start - step.start)
        for step, after in pairwise(new)
        if _is_decode(step, streams) and _is_decode(after, streams)
    ]
    if not found:
        raise StartupError(
            f"{streams} streams of {prompt_tokens + output_tokens} tokens never ran all at once: raise --max-num-seqs "
            "or --kv-cache-memory, or measure fewer streams."
        )
    return found


def _is_decode(step: Step, streams: int) -> bool:
    return len(step.scheduled) == streams and all(count == 1 for _, _, count in step.scheduled)


def _run(engine: Engine) -> None:
    while engine.has_unfinished():
        _step(engine)


def _step(engine: Engine) -> list[TokenDelta]:
    deltas = engine.step()
    for delta in deltas:
        if delta.error is not None:
            raise StartupError(f"The engine failed at a request of the measurement: {delta.error}")
    return deltas


def _add(engine: Engine, request_id: str, prompt_ids: list[int], *, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    engine.add_request(EngineRequest(request_id=request_id, prompt_ids=prompt_ids, params=params))


def _random_ids(engine: Engine, count: int, number: int) -> list[int]:
    generator = random.Random(SEED + number)
    return [generator.randrange(engine.info.vocab_size) for _ in range(count)]
