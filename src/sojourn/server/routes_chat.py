"""POST /v1/chat/completions. Knows chat's shapes; the steps it shares with completions are in `call`."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from sojourn.errors import InvalidRequest
from sojourn.server import replies
from sojourn.server.call import Call
from sojourn.server.chunks import ChatChunks
from sojourn.server.context import Context
from sojourn.server.generation import Choice, collect
from sojourn.server.json_body import JSONRoute
from sojourn.server.logprobs import ChatLogprobs, prompt_logprobs
from sojourn.server.protocol import ChatCompletionRequest
from sojourn.server.sampling import chat_params, with_bad_words
from sojourn.server.seam import Engine
from sojourn.timeline.records import RequestRecord

router = APIRouter(route_class=JSONRoute, tags=["generation"])


@router.post(
    "/v1/chat/completions",
    responses={200: {"model": replies.ChatCompletion}, "default": {"model": replies.ErrorReply}},
)
async def create_chat_completion(body: ChatCompletionRequest, request: Request, server: Context) -> Response:
    """Answer a conversation, in one piece or as server-sent events."""
    call = Call(request, server, body, id_prefix="chatcmpl", prompt_field="messages")
    engine = call.engine
    with call.lifeline.guard():
        params = await with_bad_words(chat_params(body, server.scheduling_policy), body.bad_words, engine)
        rendered = await render(
            engine,
            body.messages,
            add_generation_prompt=body.wants_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=body.chat_template_kwargs,
            must_fit=body.truncate_prompt_tokens is None,
            record=call.record,
        )
        prompt_ids = call.fit(rendered, params)
        generation = call.submit([prompt_ids], params, continues_text=body.continue_final_message)
        shapes = None
        if params.logprobs is not None:
            shapes = ChatLogprobs(engine.tokenizer, params, top=params.logprobs)
        if body.stream:
            envelope = call.envelope("chat.completion.chunk")
            return await call.stream(generation, ChatChunks(envelope, call.totals, params.n, shapes))
        choices = await collect(generation, params.n)
        if params.prompt_logprobs is not None:  # megabytes: not on the event loop
            return await asyncio.to_thread(lambda: call.reply(_in_one_piece(call, body, prompt_ids, choices, shapes)))
        return call.reply(_in_one_piece(call, body, prompt_ids, choices, shapes))


async def render(
    engine: Engine,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_kwargs: dict[str, Any],
    must_fit: bool = True,
    record: RequestRecord | None = None,
) -> list[int]:
    """Token ids of a conversation. Raises InvalidRequest if the model has no chat template or the template refuses."""
    if engine.chat_template is None:
        hint = "start the server with --chat-template FILE, or use /v1/completions"
        raise InvalidRequest(f"This model has no chat template: {hint}.", param="messages", code="no_chat_template")
    return await engine.render(
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        template_kwargs=template_kwargs,
        must_fit=must_fit,
        record=record,
    )


def _in_one_piece(
    call: Call,
    body: ChatCompletionRequest,
    prompt_ids: list[int],
    choices: list[Choice],
    shapes: ChatLogprobs | None,
) -> replies.ChatCompletion:
    call.totals.completion_tokens = sum(len(choice.token_ids) for choice in choices)
    call.totals.cached_tokens = choices[0].cached_tokens
    completion = replies.ChatCompletion(
        id=call.reply_id,
        object="chat.completion",
        created=call.created,
        model=call.model,
        choices=[_choice(index, choice, shapes) for index, choice in enumerate(choices)],
        usage=replies.Usage.of(call.totals),
    )
    if body.prompt_logprobs is not None:
        found = choices[0].prompt_logprobs
        completion.prompt_logprobs = prompt_logprobs(call.engine.tokenizer, prompt_ids, found, top=body.prompt_logprobs)
    return completion


def _choice(index: int, choice: Choice, shapes: ChatLogprobs | None) -> replies.ChatChoice:
    message = replies.ChatReplyMessage(role="assistant", content="".join(choice.text), refusal=None)
    logprobs = None
    if shapes is not None:
        logprobs = {
            "content": shapes.content(choice.token_ids, choice.logprobs, choice.finish_reason, choice.stop_reason),
            "refusal": None,
        }
    result = replies.ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=choice.finish_reason)
    if choice.stop_reason is not None:
        result.stop_reason = choice.stop_reason
    return result
