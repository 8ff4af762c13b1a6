"""The memory plan: sizes, shares, the context they allow, and refusals that name the number that fits."""

from __future__ import annotations

import pytest

from sojourn.config import CacheConfig
from sojourn.errors import StartupError
from sojourn.executor.memory_plan import MemoryPlan, plan_memory

GIB = 2**30


def plan(free: int = 8 * GIB, wanted: int | None = None, seqs: int = 64, **cache: object) -> MemoryPlan:
    return plan_memory(
        CacheConfig(**cache),
        bytes_per_token=46_080,
        model_context=8192,
        wanted_len=wanted,
        max_num_seqs=seqs,
        free_bytes=free,
    )


def test_b77_half_of_what_is_free_is_used_by_default() -> None:
    assert 0.49 * 8 * GIB < plan().kv_bytes <= 0.5 * 8 * GIB


def test_never_more_than_all_requests_can_fill() -> None:
    assert plan(free=1000 * GIB, seqs=2).num_blocks == 2 * 8192 // 32


@pytest.mark.parametrize(
    ("size", "expected"),
    [("1GiB", GIB), ("500MB", 500 * 10**6), ("25%", 2 * GIB), ("1073741824", GIB), ("0.5g", 5 * 10**8)],
)
def test_sizes_and_shares_are_understood(size: str, expected: int) -> None:
    kv_bytes = plan(kv_cache_memory=size).kv_bytes
    assert expected - 46_080 * 32 < kv_bytes <= expected


@pytest.mark.parametrize("size", ["", "much", "-3GiB", "0%", "101%", "3 bananas"])
def test_other_sizes_are_refused_by_name(size: str) -> None:
    with pytest.raises(StartupError, match="kv-cache-memory"):
        plan(kv_cache_memory=size)


def test_b77_a_context_that_does_not_fit_is_lowered_and_said_so() -> None:
    lowered = plan(free=GIB // 4)
    assert lowered.max_model_len == lowered.num_blocks * 32 < 8192
    assert "8192" in lowered.reason
    assert plan().max_model_len == 8192


def test_b77_an_asked_for_context_that_does_not_fit_is_refused_with_the_number_that_does() -> None:
    with pytest.raises(StartupError, match=r"holds 1280 tokens.*Lower it to 1280"):
        plan(num_kv_blocks=40, wanted=4096)
    with pytest.raises(StartupError, match="8192"):
        plan(wanted=10_000)


def test_no_room_for_one_block_is_refused() -> None:
    with pytest.raises(StartupError, match="No KV block fits"):
        plan(free=1000)
