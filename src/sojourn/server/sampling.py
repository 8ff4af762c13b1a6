"""Turns a request body into SamplingParams. Never samples."""

from __future__ import annotations

import msgspec

from sojourn.errors import InvalidRequest
from sojourn.records import SamplingParams
from sojourn.server.protocol import ChatCompletionRequest, CompletionRequest, SamplingBody
from sojourn.server.seam import Engine


def chat_params(body: ChatCompletionRequest, scheduling_policy: str) -> SamplingParams:
    """Checked parameters, still without `bad_token_ids`. Raises InvalidRequest."""
    _check_priority(body, scheduling_policy)
    given = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if max_tokens is not None and max_tokens < 1:
        raise InvalidRequest(f"{given} must be at least 1.", param=given)
    top = (body.top_logprobs or 0) if body.logprobs else None
    if top is not None and not 0 <= top <= 20:
        raise InvalidRequest("top_logprobs must be between 0 and 20.", param="top_logprobs")
    return _params(body, max_tokens=max_tokens, logprobs=top, prompt_logprobs=body.prompt_logprobs)


def completion_params(body: CompletionRequest, scheduling_policy: str) -> SamplingParams:
    """As chat_params. With `echo`, the prompt's logprobs are part of the reply's."""
    _check_priority(body, scheduling_policy)
    if body.max_tokens < 0 or (body.max_tokens == 0 and not body.echo):
        raise InvalidRequest("max_tokens must be at least 1, or 0 with echo.", param="max_tokens")
    prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        prompt_logprobs = max(prompt_logprobs or 0, body.logprobs)
    return _params(body, max_tokens=body.max_tokens, logprobs=body.logprobs, prompt_logprobs=prompt_logprobs)


def _check_priority(body: SamplingBody, scheduling_policy: str) -> None:
    if body.priority != 0 and scheduling_policy != "priority":
        raise InvalidRequest("priority needs a server started with --scheduling-policy priority.", param="priority")


def _params(
    body: SamplingBody, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias={int(token_id): value for token_id, value in (body.logit_bias or {}).items()} or None,
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        seed=body.seed,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        n=body.n,
        stop=body.stop,
        include_stop_str_in_output=body.include_stop_str_in_output,
        skip_special_tokens=body.skip_special_tokens,
    )


async def with_bad_words(params: SamplingParams, words: list[str], engine: Engine) -> SamplingParams:
    """Bans each word as it is tokenized at the start of a text and after a space."""
    if not words:
        return params
    sequences: dict[tuple[int, ...], None] = {}  # a set that keeps its order
    for word in words:
        for spelling in (word, " " + word.lstrip()):
            ids = await engine.tokenize(spelling, add_special_tokens=False)
            if ids:
                sequences[tuple(ids)] = None
    return msgspec.structs.replace(params, bad_token_ids=tuple(sequences))
