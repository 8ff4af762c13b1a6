"""Owns what process A and process B may say to each other, and its encoding. Never pickle, never behaviour.

Tagged msgspec structs in MessagePack: a decoder accepts these types and nothing else, so bytes from elsewhere
become an error instead of an object.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sojourn.records import EngineInfo, EngineRequest, EngineStats, TokenDelta
from sojourn.records.life import Arrival, EngineReport

# A to B


class AddRequests(msgspec.Struct, frozen=True, tag="add"):
    """Choices of one request. They travel together, so no step can begin with only some of them."""

    requests: list[EngineRequest]


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Unknown and finished ids are no-ops in the engine, so A may forget a request as soon as this is sent."""

    request_ids: list[str]


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Leave the busy loop and exit with status 0."""


ToEngine = AddRequests | AbortRequests | Stop

# B to A


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    stage: str
    fraction: float  # 0 to 1 within the stage


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class Outputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="outputs"):
    """What one step gave. Sent after every step, tokens or not: its `stats.step` is the engine's sign of life."""

    deltas: list[TokenDelta] = []
    stats: EngineStats
    arrivals: list[Arrival] = []
    report: EngineReport | None = None  # None while nobody keeps records
    sent_ns: int = 0  # time.monotonic_ns()


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="refused"):
    """A request that never entered the engine. The fields are those of the ClientError it becomes again in A."""

    request_id: str
    code: str
    message: str
    param: str | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine's last message: it could not load, or a step raised. The process exits with status 1 after it."""

    code: str
    message: str


FromEngine = Loading | Ready | Outputs | Refused | Failed

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises msgspec.DecodeError when `data` is not one of A's messages."""
    message: ToEngine = _to_engine.decode(data)
    return message


# Raises msgspec.DecodeError when the data is not one of B's messages.
decode_from_engine: Callable[[bytes], FromEngine] = msgspec.msgpack.Decoder(FromEngine).decode
