"""POST /tokenize and /detokenize, in vLLM's shapes. What they give is what generation would use."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from sojourn.records.checks import check_vocabulary
from sojourn.server import replies
from sojourn.server.context import Context, served_model
from sojourn.server.json_body import JSONRoute
from sojourn.server.lifeline import Lifeline
from sojourn.server.protocol import DetokenizeRequest, TokenizeRequest
from sojourn.server.routes_chat import render
from sojourn.server.seam import Engine

router = APIRouter(route_class=JSONRoute, tags=["tokens"])


@router.post("/tokenize", responses={200: {"model": replies.Tokenized}, "default": {"model": replies.ErrorReply}})
async def tokenize(body: TokenizeRequest, request: Request, server: Context) -> Response:
    """Token ids of a text, or of a conversation as the chat template renders it."""
    engine = server.gate.engine()
    served_model(engine, body.model)
    with Lifeline.of(request.scope).guard():
        tokens = await _tokens(body, engine)
    result = replies.Tokenized(count=len(tokens), max_model_len=engine.info.max_model_len, tokens=tokens)
    if body.return_token_strs:
        result.token_strs = [engine.tokenizer.token_text(token_id) for token_id in tokens]
    return replies.reply(result)


async def _tokens(body: TokenizeRequest, engine: Engine) -> list[int]:
    if body.prompt is not None:
        return await engine.tokenize(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    assert body.messages is not None
    return await render(
        engine,
        body.messages,
        add_generation_prompt=body.wants_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=body.chat_template_kwargs,
    )


@router.post("/detokenize", responses={200: {"model": replies.Detokenized}, "default": {"model": replies.ErrorReply}})
async def detokenize(body: DetokenizeRequest, request: Request, server: Context) -> Response:
    """Text of token ids, special tokens included."""
    engine = server.gate.engine()
    served_model(engine, body.model)
    check_vocabulary(body.tokens, engine.info, "tokens")
    with Lifeline.of(request.scope).guard():
        text = await asyncio.to_thread(engine.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return replies.reply(replies.Detokenized(prompt=text))
