"""Decides whether a request can be served at all, and what each of its choices asks of the engine. No state, no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from sojourn.errors import ContextLengthExceeded, InvalidRequest
from sojourn.records import EngineInfo, SamplingParams

MAX_PRIORITY = 2**31 - 1
MAX_SALT_CHARS = 256


def check_request(prompt_ids: list[int], params: SamplingParams, info: EngineInfo) -> None:
    """Raises InvalidRequest or ContextLengthExceeded for what the engine would refuse anyway, before it queues."""
    if not prompt_ids:
        raise InvalidRequest("The prompt has no tokens.", param="prompt")
    longest = info.max_model_len - (0 if params.max_tokens == 0 else 1)
    if len(prompt_ids) > longest:
        raise prompt_too_long(f"has {len(prompt_ids)} tokens", info)
    named: Mapping[str, Iterable[int]] = {
        "prompt": (min(prompt_ids), max(prompt_ids)),
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": params.logit_bias or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words": (token_id for sequence in params.bad_token_ids for token_id in sequence),
    }
    for param, ids in named.items():
        if not all(0 <= token_id < info.vocab_size for token_id in ids):
            last = info.vocab_size - 1
            raise InvalidRequest(f"{param} holds a token id outside the vocabulary (0 to {last}).", param=param)


def prompt_too_long(found: str, info: EngineInfo) -> ContextLengthExceeded:
    """`found` completes "The prompt ...". Both numbers are in the message, so a client can act on it."""
    return ContextLengthExceeded(
        f"The prompt {found}; this model serves prompts of at most {info.max_model_len - 1} tokens "
        f"(context length {info.max_model_len}). Shorten it.",
        param="prompt",
    )


def check_routing(priority: int, cache_salt: str) -> None:
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequest(f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}.", param="priority")
    if len(cache_salt) > MAX_SALT_CHARS:
        raise InvalidRequest(f"cache_salt may have at most {MAX_SALT_CHARS} characters.", param="cache_salt")


def choice_params(params: SamplingParams, num_prompt_tokens: int, info: EngineInfo) -> list[SamplingParams]:
    """What each of the `n` choices asks of the engine: max_tokens cut to the context, a seed of its own."""
    room = info.max_model_len - num_prompt_tokens
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    return [
        msgspec.structs.replace(
            params,
            n=1,
            max_tokens=max_tokens,
            min_tokens=min(params.min_tokens, max_tokens),
            seed=None if params.seed is None else choice_seed(params.seed, index),
        )
        for index in range(params.n)
    ]


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index`, 64 bits. Choice 0 keeps the request's own, so n = 1 and n = 4 begin alike."""
    if index == 0:
        return seed
    key = (seed % 2**64).to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"sojourn-choice").digest(), "little")
