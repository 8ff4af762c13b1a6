"""Whether this server takes requests: loading, draining, dead. Owner of the set of requests in flight.

The engine's own queue bound is the engine's business; here is only what HTTP can know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sojourn.errors import ServerError, Unavailable
from sojourn.server.lifeline import Lifeline
from sojourn.server.request_ids import RequestIds
from sojourn.server.seam import Engine, State
from sojourn.timeline.recorder import Recorder

GENERATION_PATHS = {"/v1/chat/completions": "chatcmpl", "/v1/completions": "cmpl"}  # and what reply ids begin with
MAX_TRACE_HEADER = 512  # W3C's bound for tracestate
ENGINE_PATHS = frozenset({*GENERATION_PATHS, "/tokenize", "/detokenize"})

_REFUSALS: dict[State, tuple[str, int]] = {  # state: message, seconds until a retry makes sense
    "loading": ("The model is still loading.", 2),
    "draining": ("The server is shutting down.", 10),
    "stuck": ("The engine has made no progress for too long.", 10),
    "dead": ("The engine is not running.", 10),
}


def unavailable(state: State) -> Unavailable:
    message, retry_after = _REFUSALS[state]
    return Unavailable(message, code=state, retry_after=retry_after)


class Gate:
    """Open while the engine can take requests. `engine` is None until the model is loaded."""

    def __init__(self, engine: Engine | None) -> None:
        self._engine = engine
        self._draining = False
        self._in_flight: set[Lifeline] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def state(self) -> State:
        if self._draining:
            return "draining"
        return "loading" if self._engine is None else self._engine.state

    @property
    def loaded_engine(self) -> Engine | None:
        """The engine once its model is loaded, whatever has become of it since."""
        return None if self._engine is None or self._engine.state == "loading" else self._engine

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def attach(self, engine: Engine) -> None:
        self._engine = engine

    def engine(self) -> Engine:
        """The engine, for a request that was let in. Raises Unavailable while there is none."""
        engine = self.loaded_engine
        if engine is None:
            raise unavailable("loading")
        return engine

    def require_open(self) -> None:
        """Raises Unavailable. A stuck engine may recover meanwhile, so whether it takes a request is its own answer."""
        state = self.state
        if state in {"loading", "draining", "dead"}:
            raise unavailable(state)

    def enter(self, lifeline: Lifeline) -> None:
        self.require_open()
        self._in_flight.add(lifeline)
        self._idle.clear()

    def leave(self, lifeline: Lifeline) -> None:
        self._in_flight.discard(lifeline)
        if not self._in_flight:
            self._idle.set()

    def begin_drain(self) -> None:
        """From now on new requests are refused; those in flight go on."""
        self._draining = True

    def cut_all(self, cause: ServerError) -> None:
        """End every request in flight with an error."""
        for lifeline in list(self._in_flight):
            lifeline.cut(cause)

    async def wait_idle(self) -> None:
        """Returns when no request is in flight."""
        await self._idle.wait()


def _trace_header(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    """What it says is for whoever exports the record; a longer one is none of the standard's."""
    value = headers.get(name, b"")
    return value.decode("ascii") if 0 < len(value) <= MAX_TRACE_HEADER and value.isascii() else None


class Admission:
    """Lets requests for the engine in while the gate is open, and ties each to its client's connection.

    Here begins the record of a request for generation: those without a valid key are sent away before.
    """

    def __init__(self, app: ASGIApp, gate: Gate, recorder: Recorder | None) -> None:
        self.app = app
        self.gate = gate
        self.recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ENGINE_PATHS:
            await self.app(scope, receive, send)
            return
        if self.recorder is not None and scope["method"] == "POST" and scope["path"] in GENERATION_PATHS:
            ids = RequestIds.of(scope)
            ids.record = self.recorder.begin(
                ids.for_reply(GENERATION_PATHS[scope["path"]]),
                client_request_id=ids.client_id,
                endpoint=scope["path"],
                accepted_ns=ids.arrival_ns,
            )
            headers = dict(scope["headers"])
            ids.record.traceparent = _trace_header(headers, b"traceparent")
            ids.record.tracestate = _trace_header(headers, b"tracestate")
        lifeline = Lifeline()
        lifeline.attach(scope)
        self.gate.enter(lifeline)

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                lifeline.watch(receive)
            return message

        try:
            await self.app(scope, watched_receive, send)
        finally:
            await lifeline.close()
            self.gate.leave(lifeline)
