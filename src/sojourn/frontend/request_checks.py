"""Where a request goes and what each of its choices asks of the engine. No state, no I/O."""

from __future__ import annotations

import hashlib

import msgspec

from sojourn.errors import InvalidRequest
from sojourn.records import SamplingParams

MAX_PRIORITY = 2**31 - 1
MAX_SALT_CHARS = 256
LARGEST_COUNT = 2**31 - 1  # beyond any context and vocabulary, so a larger count means the same


def check_routing(priority: int, cache_salt: str) -> None:
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequest(f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}.", param="priority")
    if len(cache_salt) > MAX_SALT_CHARS:
        raise InvalidRequest(f"cache_salt may have at most {MAX_SALT_CHARS} characters.", param="cache_salt")


def choice_params(params: SamplingParams) -> list[SamplingParams]:
    """What each of the `n` choices asks of the engine: everything alike but for a seed of its own; no stop strings.

    The prompt's logprobs are asked of choice 0 only: the others share its prompt, and so its blocks.
    """
    counts = {
        "max_tokens": None if params.max_tokens is None else min(params.max_tokens, LARGEST_COUNT),
        "min_tokens": min(params.min_tokens, LARGEST_COUNT),
        "top_k": min(params.top_k, LARGEST_COUNT),
    }
    return [
        msgspec.structs.replace(
            params,
            **counts,
            n=1,
            stop=(),
            seed=None if params.seed is None else choice_seed(params.seed, index),
            prompt_logprobs=params.prompt_logprobs if index == 0 else None,
        )
        for index in range(params.n)
    ]


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index`, 64 bits. Choice 0 keeps the request's own, so n = 1 and n = 4 begin alike."""
    if index == 0:
        return seed
    key = (seed % 2**64).to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"sojourn-choice").digest(), "little")
