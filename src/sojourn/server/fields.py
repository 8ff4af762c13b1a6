"""Field types of the request bodies that need more than a type: stop, prompt, messages, token id lists. Pure checks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from sojourn.errors import InvalidRequest
from sojourn.records.sampling_params import MAX_LOGIT_BIAS
from sojourn.server.messages import check_messages

MAX_PROMPTS = 256
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_STOP_TOKEN_IDS = 1024
MAX_SALT_CHARS = 256
MAX_PRIORITY = 2**31 - 1

Prompt = str | list[int]


def _ids(value: list[Any]) -> bool:
    return set(map(type, value)) == {int}  # a bool is no token id


def _check_prompt(value: Any) -> list[Prompt]:
    """One prompt or several, as a list of prompts. Raises InvalidRequest."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise InvalidRequest("prompt must be text, token ids, or a non-empty list of either.", param="prompt")
    if _ids(value):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt may hold at most {MAX_PROMPTS} prompts.", param="prompt")
    for position, item in enumerate(value):
        if not isinstance(item, str) and not (isinstance(item, list) and _ids(item)):
            raise InvalidRequest(
                f"prompt[{position}] must be text or a non-empty list of token ids.", param=f"prompt[{position}]"
            )
    return value


def _check_stop(value: Any) -> tuple[str, ...]:
    """Counts and lengths are checked by SamplingParams."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise InvalidRequest("stop must be a string or a list of strings.", param="stop")


def _check_logit_bias(value: dict[str, float]) -> dict[int, float]:
    """JSON keys are text; token ids are not."""
    if len(value) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias may hold at most {MAX_LOGIT_BIAS} entries.", param="logit_bias")
    result: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit()) or len(key) > 10:
            raise InvalidRequest("logit_bias keys must be token ids.", param="logit_bias")
        result[int(key)] = bias
    return result


def _check_bad_words(words: list[str]) -> list[str]:
    if len(words) > MAX_BAD_WORDS or any(not 0 < len(word) <= MAX_BAD_WORD_CHARS for word in words):
        rule = f"at most {MAX_BAD_WORDS} words of 1 to {MAX_BAD_WORD_CHARS} characters"
        raise InvalidRequest(f"bad_words may hold {rule}.", param="bad_words")
    return words


_TEXT = {"type": "string"}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer"}}

PromptField = Annotated[
    list[Prompt],
    PlainValidator(_check_prompt),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "maxItems": MAX_PROMPTS},
                _TOKEN_IDS,
                {"type": "array", "items": _TOKEN_IDS, "maxItems": MAX_PROMPTS},
            ]
        }
    ),
]
StopField = Annotated[
    tuple[str, ...], PlainValidator(_check_stop), WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]})
]
LogitBiasField = Annotated[dict[str, float], AfterValidator(_check_logit_bias)]
BadWordsField = Annotated[list[str], AfterValidator(_check_bad_words)]
MessagesField = Annotated[list[dict[str, Any]], AfterValidator(check_messages)]
StopTokenIdsField = Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)]
TokenIdsField = Annotated[list[int], Field(fail_fast=True)]
SaltField = Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)]
PriorityField = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
TruncateField = Annotated[int, Field(ge=-1)]
