"""GET /v1/models and /v1/models/{id}. A name from a request is compared with the served ones and never opened."""

from __future__ import annotations

from fastapi import APIRouter, Response

from sojourn.server import replies
from sojourn.server.context import Context, ServerContext, served_model
from sojourn.server.seam import Engine

router = APIRouter(tags=["models"])


@router.get("/v1/models", responses={200: {"model": replies.ModelList}, "default": {"model": replies.ErrorReply}})
async def list_models(server: Context) -> Response:
    """The names under which the one loaded model is served."""
    engine = server.gate.engine()
    cards = [_card(server, engine, name) for name in engine.served_names]
    return replies.reply(replies.ModelList(object="list", data=cards))


@router.get(  # names such as org/name hold slashes
    "/v1/models/{model_id:path}",
    responses={200: {"model": replies.ModelCard}, "default": {"model": replies.ErrorReply}},
)
async def retrieve_model(model_id: str, server: Context) -> Response:
    engine = server.gate.engine()
    return replies.reply(_card(server, engine, served_model(engine, model_id)))


def _card(server: ServerContext, engine: Engine, name: str) -> replies.ModelCard:
    return replies.ModelCard(
        id=name,
        object="model",
        created=server.started_at,
        owned_by="sojourn",
        max_model_len=engine.info.max_model_len,
    )
