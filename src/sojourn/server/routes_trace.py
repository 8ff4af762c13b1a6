"""GET /v1/requests/{id}/trace and /v1/trace: records in the Chrome trace format, for ui.perfetto.dev."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from sojourn.server.context import Context
from sojourn.server.routes_timeline import ERRORS, find_record, in_turns, recorder_of
from sojourn.server.sse import encode_json
from sojourn.timeline.documents import request_document, step_document
from sojourn.timeline.perfetto import chrome_trace
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.records import RequestRecord, StepRecord

router = APIRouter(tags=["timeline"])

MAX_STEPS = 5000  # in one trace: some 5 MB, and what a viewer still scrolls through
MAX_REQUESTS = 500


@router.get("/v1/requests/{request_id}/trace", responses=ERRORS)
async def request_trace(request_id: str, server: Context) -> Response:
    """One request, with the engine's steps from its first to its last."""
    recorder = recorder_of(server)
    record = find_record(recorder, request_id)
    numbers = [step for choice in record.choices for step in choice.columns("step")[0]]
    last = max(numbers, default=-1)
    first = max(min(numbers, default=0), last - MAX_STEPS + 1)
    return await _trace(recorder, [record], list(recorder.steps_numbered(range(first, last + 1))), has_more=False)


@router.get("/v1/trace", responses=ERRORS)
async def trace(
    server: Context,
    since: Annotated[float | None, Query(description="Only what began later than this `received_ms`.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS, description="Most steps, the newest ones.")] = 1000,
) -> Response:
    """Requests and the engine's steps on one axis of time. `otherData.has_more`: older ones were left out."""
    recorder = recorder_of(server)
    newest, more_steps = recorder.steps(limit=limit)
    begin_ms = -math.inf if since is None else since
    steps = list(itertools.takewhile(lambda step: recorder.since_start_ms(step.report.start_ns) > begin_ms, newest))
    records, more_records = recorder.requests(limit=MAX_REQUESTS, since_ms=since)
    has_more = more_records or (more_steps and len(steps) == len(newest))
    return await _trace(recorder, records[::-1], steps[::-1], has_more=has_more)


async def _trace(
    recorder: Recorder, records: Sequence[RequestRecord], steps: Sequence[StepRecord], *, has_more: bool
) -> Response:
    """Documents are made on the event loop, which owns the records; what is made of them needs a thread's time."""
    now_ns = time.monotonic_ns()
    requests = [request_document(recorder, record, now_ns) async for record in in_turns(records)]
    computed = [step_document(recorder, step) async for step in in_turns(steps)]

    def encode() -> bytes:
        other = {"now_ms": recorder.since_start_ms(now_ns), "has_more": has_more}
        return encode_json({**chrome_trace(requests, computed), "otherData": other})

    return Response(await asyncio.to_thread(encode), media_type="application/json")
