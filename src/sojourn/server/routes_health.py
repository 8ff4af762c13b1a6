"""GET /health, /ready, /version and /metrics. They only read what is in memory, so they answer at once whatever the
engine does."""

from __future__ import annotations

from fastapi import APIRouter, Response

from sojourn import __version__
from sojourn.server import replies
from sojourn.server.admission import unavailable
from sojourn.server.context import Context
from sojourn.timeline.metrics import CONTENT_TYPE

router = APIRouter(tags=["operation"])


@router.head("/health", include_in_schema=False)
@router.get("/health", responses={200: {"model": replies.Health}, "default": {"model": replies.ErrorReply}})
async def health(server: Context) -> Response:
    """Alive: 503 only when the engine is gone."""
    if server.gate.state == "dead":
        raise unavailable("dead")
    return replies.reply(replies.Health(status="ok"))


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses={200: {"model": replies.Health}, "default": {"model": replies.ErrorReply}})
async def ready(server: Context) -> Response:
    """Able to serve: 503 while loading, draining, stuck or dead."""
    state = server.gate.state
    if state != "ready":
        raise unavailable(state)
    return replies.reply(replies.Health(status="ready"))


@router.get("/version", responses={200: {"model": replies.Version}, "default": {"model": replies.ErrorReply}})
async def version() -> Response:
    return replies.reply(replies.Version(version=__version__))


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}, "default": {"model": replies.ErrorReply}})
async def metrics(server: Context) -> Response:
    """Prometheus text. Engine metrics appear once the model is loaded."""
    engine = server.gate.loaded_engine
    name = engine.served_names[0] if engine is not None else ""
    if server.finished is not None:
        server.finished.pull()
    text = server.metrics.render(name, engine.stats if engine is not None else None)
    return Response(text, headers={"content-type": CONTENT_TYPE})
