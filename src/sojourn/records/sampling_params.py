"""What a request asks of the sampler and of stopping. Checked on construction, so an invalid one can't exist."""

from __future__ import annotations

import math

import msgspec

from sojourn.errors import InvalidRequest

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_CHOICES = 128


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Field names and meanings are vLLM's. `0`, `1` and `-1` switch a filter off as noted.

    The engine never reads the text fields (`n`, `stop`, `include_stop_str_in_output`, `skip_special_tokens`);
    they belong to the front end, which also turns `bad_words` text into `bad_token_ids`.
    Raises InvalidRequest, naming the field, when a value is out of range.
    """

    max_tokens: int | None = 16  # None: as many as the context leaves
    min_tokens: int = 0  # end-of-text and stop ids are masked until this many exist
    temperature: float = 1.0  # 0: arg-max, lowest id on ties
    top_k: int = 0  # 0 or -1: off
    top_p: float = 1.0  # 1: off; 0 keeps the single best
    min_p: float = 0.0  # 0: off; 1 keeps the best only
    repetition_penalty: float = 1.0  # prompt and output tokens
    presence_penalty: float = 0.0  # output tokens only
    frequency_penalty: float = 0.0  # output tokens only
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_token_ids: tuple[tuple[int, ...], ...] = ()  # banned sequences
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None  # None: fresh entropy for each request
    logprobs: int | None = None  # how many top alternatives; 0: the sampled token only; None: none
    prompt_logprobs: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _require_finite(self)
        _check(self.max_tokens is None or self.max_tokens >= 0, "max_tokens", "must be at least 1")
        _check(self.min_tokens >= 0, "min_tokens", "must be at least 0")
        if self.max_tokens is not None:
            _check(self.min_tokens <= self.max_tokens, "min_tokens", f"must be at most max_tokens ({self.max_tokens})")
        _check(0.0 <= self.temperature <= 2.0, "temperature", "must be between 0 and 2")
        _check(self.top_k >= -1, "top_k", "must be -1 or 0 (off) or a positive count")
        _check(0.0 <= self.top_p <= 1.0, "top_p", "must be between 0 and 1")
        _check(0.0 <= self.min_p <= 1.0, "min_p", "must be between 0 and 1")
        _check(0.0 < self.repetition_penalty <= 100.0, "repetition_penalty", "must be above 0 and at most 100")
        _check(-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", "must be between -2 and 2")
        _check(-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", "must be between -2 and 2")
        _check(1 <= self.n <= MAX_CHOICES, "n", f"must be between 1 and {MAX_CHOICES}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _check(value is None or 0 <= value <= MAX_LOGPROBS, name, f"must be between 0 and {MAX_LOGPROBS}")
        _check(self.allowed_token_ids is None or bool(self.allowed_token_ids), "allowed_token_ids", "must not be empty")
        if self.logit_bias is not None:
            _check(len(self.logit_bias) <= MAX_LOGIT_BIAS, "logit_bias", f"may hold at most {MAX_LOGIT_BIAS} entries")
            for bias in self.logit_bias.values():
                _check(-100.0 <= bias <= 100.0, "logit_bias", "values must be between -100 and 100")
        _check(all(self.bad_token_ids), "bad_words", "must not hold an empty sequence")
        _check(len(self.stop) <= MAX_STOP_STRINGS, "stop", f"may hold at most {MAX_STOP_STRINGS} strings")
        for stop in self.stop:
            _check(0 < len(stop) <= MAX_STOP_CHARS, "stop", f"strings must have 1 to {MAX_STOP_CHARS} characters")
        _check(self.seed is None or -(2**63) <= self.seed < 2**64, "seed", "must fit in 64 bits")


def _check(ok: bool, param: str, rule: str) -> None:
    if not ok:
        raise InvalidRequest(f"{param} {rule}.", param=param)


def _require_finite(params: SamplingParams) -> None:
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        _check(math.isfinite(getattr(params, name)), name, "must be a finite number")
