"""One hash over tokens and logprobs, whatever else is computed beside them: the third promise.

64 prompts, greedy and seeded: alone; all at once in shuffled order; chunks of 16 and 4096; cold and warm cache; a pool
so small that requests are preempted; one, two and four threads. The same with K and V in int8, which has its own hash.
"""

from __future__ import annotations

import hashlib
import random
import struct
from typing import Any

import pytest

from sojourn import LLMEngine, Model, SamplingParams
from sojourn.config import CacheConfig

NUM_PROMPTS = 64
PREFIX = list(range(700, 780))  # shared by half of the prompts


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    made = [[rng.randrange(49_000) for _ in range(rng.randint(1, 90))] for _ in range(NUM_PROMPTS)]
    return [[*PREFIX, *ids] if index % 2 else ids for index, ids in enumerate(made)]


def params(index: int) -> SamplingParams:
    seeded: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "top_k": 200, "seed": index}
    chosen = seeded if index % 4 > 1 else {"temperature": 0.0}
    return SamplingParams(max_tokens=12, ignore_eos=True, logprobs=3, **chosen)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_pretrained("smollm2:135m")


def engine(model: Model, kv_dtype: str, *, cache: dict[str, Any] | None = None, **options: Any) -> LLMEngine:
    laid_out = CacheConfig(kv_cache_dtype=kv_dtype, **{"num_kv_blocks": 800, **(cache or {})})
    return LLMEngine(model, **{"max_num_seqs": 64, "cache": laid_out, **options})


def digests(made: LLMEngine, order: list[int], *, together: bool = True) -> dict[int, str]:
    """By prompt: the hash of its token ids and of the bits of every logprob."""
    hashes = {index: hashlib.sha256() for index in order}
    names: dict[str, int] = {}
    everything = prompts()
    for index in order:
        names[made.add_request(everything[index], params(index)).request_id] = index
        if not together:
            _drain(made, names, hashes)
    _drain(made, names, hashes)
    return {index: found.hexdigest() for index, found in hashes.items()}


def _drain(made: LLMEngine, names: dict[str, int], hashes: dict[int, Any]) -> None:
    while made.has_unfinished():
        for delta in made.step():
            for token_id, entry in zip(delta.token_ids, delta.logprobs or (), strict=True):
                values = (entry.logprob, *entry.top_logprobs)
                packed = struct.pack(f"<i{len(values)}d", token_id, *values)
                hashes[names[delta.request_id]].update(packed + struct.pack("<3i", *entry.top_ids))


@pytest.fixture(scope="module", params=["f16", "int8"])
def kv_dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def alone(model: Model, kv_dtype: str) -> dict[int, str]:
    made = engine(model, kv_dtype, cache={"num_kv_blocks": 64, "enable_prefix_caching": False})
    found = digests(made, list(range(NUM_PROMPTS)), together=False)
    assert len(set(found.values())) == NUM_PROMPTS
    return found


def shuffled(seed: int) -> list[int]:
    order = list(range(NUM_PROMPTS))
    random.Random(seed).shuffle(order)
    return order


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 4096},
        {"max_num_batched_tokens": 64, "max_num_seqs": 16},
        {"max_num_batched_tokens": 16, "max_num_seqs": 16},
        {"threads": 1},
        {"threads": 4},
        {"cache": {"block_size": 64}},
    ],
    ids=str,
)
def test_b68_batches_chunks_and_threads(
    model: Model, kv_dtype: str, alone: dict[int, str], options: dict[str, Any]
) -> None:
    assert digests(engine(model, kv_dtype, **options), shuffled(1)) == alone


def test_b68_cold_and_warm(model: Model, kv_dtype: str, alone: dict[int, str]) -> None:
    made = engine(model, kv_dtype)
    for seed in (2, 3):
        assert digests(made, shuffled(seed)) == alone
    assert made.core.stats().cached_tokens > 5000


def test_b68_preempted(model: Model, kv_dtype: str, alone: dict[int, str]) -> None:
    made = engine(model, kv_dtype, cache={"num_kv_blocks": 80, "block_size": 16})
    assert digests(made, shuffled(4)) == alone
    assert made.core.stats().num_preemptions > 0
