"""What process B reports: tokens per request, and the engine's own counters and gauges."""

from __future__ import annotations

import enum

import msgspec


class FinishReason(enum.IntEnum):
    """Why a request ended. `str()` gives the word used on the wire."""

    STOP = 0  # end-of-text or a stop token id
    LENGTH = 1  # max_tokens or the context limit
    ABORT = 2  # the client left
    ERROR = 3  # this request failed; TokenDelta.error says how

    def __str__(self) -> str:
        return self.name.lower()


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One position: the chosen token's logprob and rank (1 = most likely), then the most likely tokens, best first."""

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step added to one request."""

    request_id: str
    token_ids: list[int] = []  # new output tokens
    logprobs: list[TokenLogprobs] | None = None  # one per new token, if asked for
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # a slice, in order; the first position has none
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the stop id that ended it, when one did
    error: str | None = None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Gauges at the end of a step, and counters since the engine started. Goes with every step, hence without names."""

    step: int = 0
    num_running: int = 0
    waiting_by_reason: dict[str, int] = {}
    kv_live: int = 0  # blocks held by requests
    kv_cached: int = 0  # blocks held by nobody whose contents may be hit
    kv_free: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0  # each once, computed or taken from the prefix cache
    cached_tokens: int = 0  # of those, the ones taken from the prefix cache
    recomputed_tokens: int = 0  # computed again after a preemption, prompt or output
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up in the prefix cache, at each admission
    prefix_hits: int = 0  # of those, the ones found
    finished: dict[str, int] = {}  # by finish reason
    last_step_ns: int = 0  # time.monotonic_ns() at the end of the last step


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine settled on while loading; the start-up screen, /v1/models and the page read it."""

    model: str  # path or name as given
    architecture: str
    quantization: str  # e.g. "Q4_1"
    num_parameters: int
    vocab_size: int
    max_model_len: int
    max_model_len_reason: str
    num_kv_blocks: int
    block_size: int
    kv_bytes: int
    kv_dtype: str  # what K and V are stored in
    weight_bytes: int
    backend: str
    threads: int
    isa: str
    load_seconds: float
