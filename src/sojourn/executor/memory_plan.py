"""Decides how many KV blocks there are and how long a request may become. Pure arithmetic on numbers it is given."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sojourn.config import CacheConfig
from sojourn.errors import StartupError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
AUTO_SHARE = 0.5  # of what is free beside the weights and the largest step


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`max_model_len` is the longest prompt plus output in tokens; `reason` says what decided it."""

    num_blocks: int
    kv_bytes: int
    max_model_len: int
    reason: str


def plan_memory(
    cache: CacheConfig,
    *,
    bytes_per_token: int,
    model_context: int,
    wanted_len: int | None,
    max_num_seqs: int,
    free_bytes: int,
) -> MemoryPlan:
    """Lay out the KV memory.

    `bytes_per_token` counts K and V of all layers; `free_bytes` is what the cgroup or the machine has free beside the
    weights and the largest step. Without an explicit size, half of that is used, but never more than `max_num_seqs`
    requests of full length could fill. Raises StartupError when not even one block fits, or when `wanted_len` can't be
    had.
    """
    longest = longest_request(wanted_len, model_context)
    bytes_per_block = bytes_per_token * cache.block_size
    if cache.num_kv_blocks is not None:
        num_blocks = cache.num_kv_blocks
    else:
        useful = max_num_seqs * -(-longest // cache.block_size)
        num_blocks = min(useful, _memory(cache.kv_cache_memory, free_bytes) // bytes_per_block)
    if num_blocks < 1:
        raise StartupError(
            f"No KV block fits: one takes {bytes_per_block} bytes, and --kv-cache-memory {cache.kv_cache_memory} "
            f"leaves less of the {free_bytes} bytes that are free. Give it more memory."
        )
    capacity = num_blocks * cache.block_size
    if wanted_len is not None and wanted_len > capacity:
        raise StartupError(
            f"--max-model-len {wanted_len} does not fit: the KV memory holds {capacity} tokens. "
            f"Lower it to {capacity} or raise --kv-cache-memory."
        )
    if longest > capacity:
        longest, reason = capacity, f"all the KV memory holds; the model allows {model_context}"
    else:
        reason = "as asked for" if wanted_len is not None else "the model's own context length"
    return MemoryPlan(num_blocks, num_blocks * bytes_per_block, longest, reason)


def longest_request(wanted_len: int | None, model_context: int) -> int:
    """Tokens of prompt and output together, while memory is no limit. Raises StartupError."""
    if wanted_len is not None and wanted_len > model_context:
        raise StartupError(
            f"--max-model-len {wanted_len} is more than the {model_context} tokens this model was made for."
        )
    return wanted_len or model_context


def _memory(size: str, free_bytes: int) -> int:
    """Bytes meant by auto, 2GiB, 500MB, 1073741824 or 30%."""
    if size == "auto":
        return int(free_bytes * AUTO_SHARE)
    share = re.fullmatch(r"(\d+(?:\.\d+)?)%", size)
    if share and 0 < float(share[1]) <= 100:
        return int(free_bytes * float(share[1]) / 100)
    amount = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", size.upper())
    if amount:
        return int(float(amount[1]) * _UNITS.get(amount[2], 0))
    raise StartupError(f"--kv-cache-memory {size!r}: give auto, a size such as 2GiB, or a share such as 30%.")
