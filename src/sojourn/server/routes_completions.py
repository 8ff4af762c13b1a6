"""POST /v1/completions. Knows completions' shapes: several prompts, echo, parallel lists of logprobs."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from sojourn.errors import RequestFailed
from sojourn.records import SamplingParams
from sojourn.server import replies
from sojourn.server.call import Call
from sojourn.server.chunks import CompletionChunks, Echo
from sojourn.server.context import Context
from sojourn.server.fields import Prompt
from sojourn.server.generation import Choice, collect
from sojourn.server.json_body import JSONRoute
from sojourn.server.logprobs import CompletionLogprobs, prompt_logprobs
from sojourn.server.protocol import CompletionRequest
from sojourn.server.sampling import completion_params, with_bad_words
from sojourn.server.seam import Engine

router = APIRouter(route_class=JSONRoute, tags=["generation"])


@router.post(
    "/v1/completions",
    responses={200: {"model": replies.Completion}, "default": {"model": replies.ErrorReply}},
)
async def create_completion(body: CompletionRequest, request: Request, server: Context) -> Response:
    """Continue text, in one piece or as server-sent events."""
    call = Call(request, server, body, id_prefix="cmpl", prompt_field="prompt")
    engine = call.engine
    with call.lifeline.guard():
        params = await with_bad_words(completion_params(body, server.scheduling_policy), body.bad_words, engine)
        prompts: list[list[int]] = []
        echoes: list[Echo] = []
        for prompt in body.prompt:
            prompt_ids = await _token_ids(prompt, body, call)
            kept = call.fit(prompt_ids, params)
            prompts.append(kept)
            echoes.append(Echo(await _echo_text(prompt, kept, len(prompt_ids), engine) if body.echo else "", kept))
        generation = call.submit(prompts, params, continues_text=True)
        count = len(prompts) * params.n
        shapes = _shapes(params, engine, count)
        if body.stream:
            envelope = call.envelope("text_completion")
            chunks = CompletionChunks(
                envelope,
                call.totals,
                choices_per_prompt=params.n,
                echoes=echoes,
                logprobs=shapes,
            )
            return await call.stream(generation, chunks)
        choices = await collect(generation, count)
        if params.prompt_logprobs is not None:  # megabytes: not on the event loop
            return await asyncio.to_thread(lambda: call.reply(_in_one_piece(call, body, echoes, choices, shapes)))
        return call.reply(_in_one_piece(call, body, echoes, choices, shapes))


async def _token_ids(prompt: Prompt, body: CompletionRequest, call: Call) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    return await call.engine.tokenize(
        prompt,
        add_special_tokens=body.add_special_tokens,
        must_fit=body.truncate_prompt_tokens is None,
        record=call.record,
    )


async def _echo_text(prompt: Prompt, kept: list[int], length: int, engine: Engine) -> str:
    """The prompt as given; decoded if it was ids or was cut."""
    if isinstance(prompt, str) and len(kept) == length:
        return prompt
    return await asyncio.to_thread(engine.tokenizer.decode, kept)


def _shapes(params: SamplingParams, engine: Engine, count: int) -> list[CompletionLogprobs] | None:
    """One per choice, as each keeps its own text offset."""
    if params.logprobs is None:
        return None
    top, hide = params.logprobs, params.skip_special_tokens
    return [CompletionLogprobs(engine.tokenizer, top=top, hide_special=hide) for _ in range(count)]


def _in_one_piece(
    call: Call,
    body: CompletionRequest,
    echoes: list[Echo],
    choices: list[Choice],
    shapes: list[CompletionLogprobs] | None,
) -> replies.Completion:
    n = body.n
    for position, echo in enumerate(echoes):
        echo.logprobs = choices[position * n].prompt_logprobs  # computed once for all choices of a prompt
    call.totals.cached_tokens = sum(choice.cached_tokens for choice in choices[::n])
    call.totals.completion_tokens = sum(len(choice.token_ids) for choice in choices)
    return replies.Completion(
        id=call.reply_id,
        object="text_completion",
        created=call.created,
        model=call.model,
        choices=[
            _choice(index, choice, echoes[index // n], shapes[index] if shapes else None, call=call, body=body)
            for index, choice in enumerate(choices)
        ],
        usage=replies.Usage.of(call.totals),
    )


def _choice(
    index: int, choice: Choice, echo: Echo, shape: CompletionLogprobs | None, *, call: Call, body: CompletionRequest
) -> replies.CompletionChoice:
    logprobs = None
    if shape is not None and body.echo:
        if len(echo.logprobs) != len(echo.prompt_ids):
            raise RequestFailed("The engine did not give the logprobs of the whole prompt.")
        logprobs = shape.lists([*echo.prompt_ids, *choice.token_ids], [*echo.logprobs, *choice.logprobs])
    elif shape is not None:
        logprobs = shape.lists(choice.token_ids, choice.logprobs)
    result = replies.CompletionChoice(
        index=index, text=echo.text + "".join(choice.text), logprobs=logprobs, finish_reason=choice.finish_reason
    )
    if choice.stop_reason is not None:
        result.stop_reason = choice.stop_reason
    if body.prompt_logprobs is not None:
        top = body.prompt_logprobs
        result.prompt_logprobs = prompt_logprobs(call.engine.tokenizer, echo.prompt_ids, echo.logprobs, top=top)
    return result
