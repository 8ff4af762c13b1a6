"""What makes a request impossible to serve, so that both processes refuse the same things in the same words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sojourn.errors import ContextLengthExceeded, InvalidRequest
from sojourn.records.outputs import EngineInfo
from sojourn.records.sampling_params import SamplingParams


def check_request(
    prompt_ids: Sequence[int],
    params: SamplingParams,
    info: EngineInfo,
    *,
    eos_token_ids: Collection[int] = (),
    prompt_field: str = "prompt",
) -> None:
    """Raises ContextLengthExceeded for too long a prompt, InvalidRequest for none, an id outside the vocabulary, or
    when no token is left to sample.

    `eos_token_ids` are the ids that end a text, for a caller that knows them; `prompt_field` is what it calls the
    prompt.
    """
    if not prompt_ids:
        raise InvalidRequest("The prompt has no tokens.", param=prompt_field)
    if len(prompt_ids) > info.max_model_len - (0 if params.max_tokens == 0 else 1):
        raise prompt_too_long(f"has {len(prompt_ids)} tokens", info, prompt_field=prompt_field)
    named: Mapping[str, Iterable[int]] = {
        prompt_field: (min(prompt_ids), max(prompt_ids)),
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": params.logit_bias or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words": (token_id for sequence in params.bad_token_ids for token_id in sequence),
    }
    for param, ids in named.items():
        check_vocabulary(ids, info, param)
    _check_allowed(params, eos_token_ids)


def _check_allowed(params: SamplingParams, eos_token_ids: Collection[int]) -> None:
    """Something of allowed_token_ids must be left of what bad_words and min_tokens take away."""
    if params.allowed_token_ids is None:
        return
    left = set(params.allowed_token_ids) - {ids[0] for ids in params.bad_token_ids if len(ids) == 1}
    if not left:
        raise InvalidRequest("bad_words bans every one of allowed_token_ids.", param="allowed_token_ids")
    if params.min_tokens and left <= {*eos_token_ids, *params.stop_token_ids}:
        raise InvalidRequest(
            "allowed_token_ids leaves only tokens that end the text, and min_tokens forbids those at first. "
            "Allow another token or leave out min_tokens.",
            param="allowed_token_ids",
        )


def check_vocabulary(ids: Iterable[int], info: EngineInfo, param: str) -> None:
    """Raises InvalidRequest, naming `param`, if an id is no token of the model."""
    if not all(0 <= token_id < info.vocab_size for token_id in ids):
        last = info.vocab_size - 1
        raise InvalidRequest(f"{param} holds a token id outside the vocabulary (0 to {last}).", param=param)


def prompt_too_long(found: str, info: EngineInfo, *, prompt_field: str = "prompt") -> ContextLengthExceeded:
    """`found` completes "The prompt ...". Both numbers are in the message, so a client can act on it."""
    return ContextLengthExceeded(
        f"The prompt {found}; this model serves prompts of at most {info.max_model_len - 1} tokens "
        f"(context length {info.max_model_len}). Shorten it.",
        param=prompt_field,
    )
