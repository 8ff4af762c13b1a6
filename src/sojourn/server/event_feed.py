"""Sends one follower what changes in the records. Owner of the follower's subscription.

Events are made only while somebody follows, and for a slow reader changes merge until it has read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from sojourn.server.context import ServerContext
from sojourn.server.lifeline import disconnected
from sojourn.server.sse import ServerSentEvents, encode_json
from sojourn.timeline.documents import (
    changes_document,
    kv_document,
    ms,
    queue_document,
    request_document,
    step_document,
)
from sojourn.timeline.live import Subscription
from sojourn.timeline.recorder import Recorder

INTERVAL_S = 0.15
KEEP_ALIVE_S = 15.0
SNAPSHOT_REQUESTS = 200
SNAPSHOT_STEPS = 300


class EventFeed(ServerSentEvents):
    def __init__(self, server: ServerContext, recorder: Recorder, system: Callable[[], dict[str, Any]]) -> None:
        """`system` gives what /v1/system shows. Raises Unavailable while there is no engine."""
        super().__init__()
        self._server = server
        self._recorder = recorder
        self._system = system()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        left = asyncio.create_task(disconnected(receive))
        subscription = self._recorder.subscribe()
        try:
            await _send(send, event("snapshot", self._snapshot()))
            await self._follow(send, subscription, left)
        finally:
            self._recorder.unsubscribe(subscription)
            left.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(self, send: Send, subscription: Subscription, left: asyncio.Task[None]) -> None:
        last_sent, last_queue = time.monotonic(), [""]
        while not left.done() and not self._is_over():
            await asyncio.wait({left}, timeout=INTERVAL_S)
            changes = self._recorder.changes(subscription)
            queue = [f"{choice.engine_id} {choice.waiting_reason}" for _, choice in self._recorder.queue()]
            if changes or queue != last_queue:
                now_ns = time.monotonic_ns()
                delta = changes_document(self._recorder, changes, now_ns) | {"stats": self._stats()}
                await _send(send, event("delta", delta))
            elif time.monotonic() - last_sent > KEEP_ALIVE_S:
                await _send(send, b": nothing new\n\n")
            else:
                continue
            last_sent, last_queue = time.monotonic(), queue

    def _is_over(self) -> bool:
        """The server stops: it would wait for this connection."""
        return self._server.gate.state == "draining" and self._server.gate.in_flight == 0

    def _snapshot(self) -> dict[str, Any]:
        recorder, now_ns = self._recorder, time.monotonic_ns()
        records, _ = recorder.requests(limit=SNAPSHOT_REQUESTS)
        steps, _ = recorder.steps(limit=SNAPSHOT_STEPS)
        return {
            "now_ms": ms(now_ns - recorder.origin_ns),
            "system": self._system,
            "requests": [request_document(recorder, record, now_ns, full=False) for record in records],
            "steps": [step_document(recorder, step) for step in reversed(steps)],
            "queue": queue_document(recorder, now_ns),
            "kv": kv_document(recorder),
            "stats": self._stats(),
        }

    def _stats(self) -> dict[str, Any]:
        engine = self._server.gate.loaded_engine
        if engine is None:
            return {}
        stats = engine.stats
        return {
            "running": stats.num_running,
            "waiting": stats.waiting_by_reason,
            "preemptions": stats.num_preemptions,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "generation_tokens": stats.generation_tokens,
        }


def event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode_json(data) + b"\n\n"


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
