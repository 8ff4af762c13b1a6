"""What process A sends to process B for one choice of one request."""

from __future__ import annotations

import msgspec

from sojourn.records.sampling_params import SamplingParams


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One choice: a request with n = 3 is three of these, whose prompts share their KV blocks by the prefix cache."""

    request_id: str  # unique in the engine: "<reply id>" or "<reply id>/<choice index>"
    prompt_ids: list[int]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()  # every id that ends generation, as the tokenizer knows them
    priority: int = 0  # lower runs earlier, as in vLLM
    cache_salt: str = ""  # requests share cached blocks only under the same salt
    arrival_ns: int = 0  # time.monotonic_ns() when HTTP was accepted
