"""GET /v1/requests, /v1/steps, /v1/events and /v1/system: the records as JSON. They only read.

Documents are made when somebody asks, a few at a time, so that a long list doesn't hold up the tokens of others.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Response

from sojourn.errors import NotFound, QueueFull
from sojourn.server import replies
from sojourn.server.context import Context, ServerContext
from sojourn.server.event_feed import EventFeed
from sojourn.server.sse import encode_json
from sojourn.timeline.documents import request_document, step_document
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.records import RequestRecord, RequestState
from sojourn.timeline.system import system_document

router = APIRouter(tags=["timeline"])

MAX_REQUESTS = 500
MAX_STEPS = 5000
MAX_FOLLOWERS = 32
DOCUMENTS_AT_ONCE = 20

T = TypeVar("T")
ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": replies.ErrorReply}}


@router.get("/v1/requests", responses=ERRORS)
async def list_requests(
    server: Context,
    state: RequestState | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_REQUESTS)] = 100,
    since: Annotated[float | None, Query(description="Only those accepted later than this `received_ms`.")] = None,
) -> Response:
    """Summaries of recent and live requests, newest first."""
    recorder = recorder_of(server)
    records, has_more = recorder.requests(state=state, limit=limit, since_ms=since)
    now_ns = time.monotonic_ns()
    return await _page(lambda record: request_document(recorder, record, now_ns, full=False), records, has_more)


@router.get("/v1/requests/{request_id}", responses=ERRORS)
async def get_request(request_id: str, server: Context) -> Response:
    """The whole record of one request, by the `id` of its reply."""
    recorder = recorder_of(server)
    record = find_record(recorder, request_id)
    return _json(request_document(recorder, record, time.monotonic_ns()))


@router.get("/v1/steps", responses=ERRORS)
async def list_steps(
    server: Context,
    since: Annotated[int, Query(description="Only steps with a higher number.")] = -1,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = 1000,
) -> Response:
    """Steps of the engine, newest first."""
    recorder = recorder_of(server)
    steps, has_more = recorder.steps(since=since, limit=limit)
    return await _page(lambda step: step_document(recorder, step), steps, has_more)


@router.get("/v1/events", responses=ERRORS)
async def follow(server: Context) -> Response:
    """Server-sent events: a `snapshot`, then a `delta` whenever something has changed."""
    recorder = recorder_of(server)
    if recorder.num_followers >= MAX_FOLLOWERS:
        raise QueueFull(f"{MAX_FOLLOWERS} clients follow the events already.")
    return EventFeed(server, recorder, lambda: _system(server))


@router.get("/v1/system", responses=ERRORS)
async def system(server: Context) -> Response:
    """The model, the machine, the configuration in force and where each value came from."""
    return _json(_system(server))


def _system(server: ServerContext) -> dict[str, Any]:
    engine = server.gate.engine()
    pids = [pid for pid in (os.getpid(), engine.engine_pid) if pid is not None]
    name = engine.served_names[0]
    return system_document(server.system, engine.info, name, started_at=server.started_at, pids=pids)


def recorder_of(server: ServerContext) -> Recorder:
    """Raises NotFound where no records are kept."""
    if server.recorder is None:
        raise NotFound("This server keeps no records (SOJOURN_RECORDS=0).")
    return server.recorder


def find_record(recorder: Recorder, request_id: str) -> RequestRecord:
    """Raises NotFound."""
    record = recorder.request(request_id)
    if record is None:
        raise NotFound(f"There is no record of this request; the last {recorder.max_requests} are kept.")
    return record


async def _page(make: Callable[[T], dict[str, Any]], items: Iterable[T], has_more: bool) -> Response:
    return _json({"data": [make(item) async for item in in_turns(items)], "has_more": has_more})


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Lets others have the event loop every now and then."""
    for number, item in enumerate(items):
        if number % DOCUMENTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        yield item


def _json(document: dict[str, Any]) -> Response:
    return Response(encode_json(document), media_type="application/json")
