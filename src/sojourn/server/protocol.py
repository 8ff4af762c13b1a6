"""The request bodies, which are also the OpenAPI document. They check types; ranges belong to SamplingParams,
meaning to the routes.

Null means absent, unknown names are ignored, and known fields without a feature behind them are refused (see
`unsupported`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sojourn.errors import InvalidRequest, Unsupported
from sojourn.server import unsupported
from sojourn.server.fields import (
    BadWordsField,
    LogitBiasField,
    MessagesField,
    PriorityField,
    PromptField,
    SaltField,
    StopField,
    StopTokenIdsField,
    TokenIdsField,
    TruncateField,
)

_SERVER_ARGUMENTS = frozenset(  # of the template call; a request must not reach them through the back door
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "messages",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tools",
    }
)


class Body(BaseModel):
    """Strict types, so that "5" is no number and 5.0 no count."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        present = {name: value for name, value in data.items() if value is not None}
        unsupported.refuse(present, cls.refused)
        return present


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    include_usage: bool | None = Field(None, description="Send one more chunk with the usage before the end.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if isinstance(data, dict):
            present = {name: value for name, value in data.items() if value is not None}
            unsupported.refuse(present, unsupported.STREAM_OPTIONS, prefix="stream_options.")
        return data


class SamplingBody(Body):
    """What chat and completions share."""

    model: str | None = Field(None, description="One of the names in /v1/models.")
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Accepted for compatibility; changes nothing.")

    max_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: LogitBiasField | None = None
    allowed_token_ids: TokenIdsField | None = None
    bad_words: BadWordsField = []
    seed: int | None = None
    stop: StopField = ()
    stop_token_ids: StopTokenIdsField = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = Field(None, description="Top alternatives to give for each prompt token.")
    truncate_prompt_tokens: TruncateField | None = Field(
        None, description="Keep only the last so many prompt tokens; -1: as many as fit."
    )
    priority: PriorityField = Field(0, description="Lower runs earlier; needs --scheduling-policy priority.")
    cache_salt: SaltField | None = Field(None, description="Requests share cached prefixes only under the same salt.")

    timings: bool = Field(False, description="Add the time account of this request to the reply.")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @model_validator(mode="after")
    def _stream_rules(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise Unsupported("prompt_logprobs are not available in a stream.", param="prompt_logprobs")
        if self.truncate_prompt_tokens == 0:
            raise InvalidRequest("truncate_prompt_tokens must be -1 or at least 1.", param="truncate_prompt_tokens")
        return self


class ChatCompletionRequest(SamplingBody):
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = unsupported.CHAT

    messages: MessagesField
    max_completion_tokens: int | None = Field(None, description="Wins over max_tokens when both are given.")
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = Field(None, description="Default: true, unless continue_final_message.")
    continue_final_message: bool = Field(False, description="The reply continues the last message.")
    chat_template_kwargs: dict[str, Any] = {}

    @model_validator(mode="after")
    def _chat_rules(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
        check_template_fields(self.add_generation_prompt, self.continue_final_message, self.chat_template_kwargs)
        return self

    @property
    def wants_generation_prompt(self) -> bool:
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt


class CompletionRequest(SamplingBody):
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = unsupported.COMPLETION

    prompt: PromptField
    max_tokens: int = 16
    logprobs: int | None = Field(None, description="Top alternatives to give for each token; 0: the token's own only.")
    echo: bool = Field(False, description="Begin the reply with the prompt.")
    best_of: int | None = Field(None, description="Only the value of n is supported.")
    add_special_tokens: bool = Field(True, description="Let the tokenizer add its BOS to a text prompt.")

    @model_validator(mode="after")
    def _completion_rules(self) -> Self:
        if self.best_of is not None and self.best_of != self.n:
            raise Unsupported("best_of other than n is not supported.", param="best_of")
        return self


class TokenizeRequest(Body):
    """Exactly one of `prompt` and `messages`."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = unsupported.TOKENIZE

    model: str | None = None
    prompt: str | None = None
    messages: MessagesField | None = None
    add_special_tokens: bool | None = Field(None, description="Default: true for a prompt, false for messages.")
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}

    @model_validator(mode="after")
    def _tokenize_rules(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("Give exactly one of prompt and messages.", param="prompt")
        if self.messages is not None and self.add_special_tokens:
            raise Unsupported("add_special_tokens is not supported with messages.", param="add_special_tokens")
        check_template_fields(self.add_generation_prompt, self.continue_final_message, self.chat_template_kwargs)
        return self

    @property
    def wants_generation_prompt(self) -> bool:
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: TokenIdsField


def check_template_fields(add_generation_prompt: bool | None, continue_final: bool, kwargs: dict[str, Any]) -> None:
    """Raises InvalidRequest for a contradiction, or for template arguments that are the server's own."""
    if continue_final and add_generation_prompt:
        rule = "continue_final_message and add_generation_prompt can't both be true."
        raise InvalidRequest(rule, param="continue_final_message")
    for name in sorted(kwargs.keys() & _SERVER_ARGUMENTS):
        raise Unsupported(f"chat_template_kwargs.{name} is not allowed.", param=f"chat_template_kwargs.{name}")
