"""The reply bodies, which are also the OpenAPI document. Fields that were never set are omitted; those set to null
are null."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import Response
from pydantic import BaseModel

from sojourn.server.generation import Totals


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(BaseModel):
    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int
    truncated_tokens: int = 0  # only with truncate_prompt_tokens


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, totals: Totals) -> Usage:
        details = PromptTokensDetails(cached_tokens=totals.cached_tokens)
        if totals.truncated_tokens:
            details.truncated_tokens = totals.truncated_tokens
        return cls(
            prompt_tokens=totals.prompt_tokens,
            completion_tokens=totals.completion_tokens,
            total_tokens=totals.prompt_tokens + totals.completion_tokens,
            prompt_tokens_details=details,
        )


class ChatReplyMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: ChatReplyMessage
    logprobs: dict[str, Any] | None
    finish_reason: str
    stop_reason: str | int | None = None  # the stop string or token id that ended it


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    timings: dict[str, Any] | None = None  # with "timings": true or --timings


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, list[Any]] | None
    finish_reason: str
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: dict[str, Any] | None = None


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["sojourn"]
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    prompt: str


class Health(BaseModel):
    status: Literal["ok", "ready"]


class Version(BaseModel):
    version: str


def reply(body: BaseModel) -> Response:
    return Response(body.model_dump_json(exclude_unset=True), media_type="application/json")
