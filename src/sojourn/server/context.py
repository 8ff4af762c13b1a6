"""What all routes of one server share, handed to them by FastAPI's dependency injection. Owns nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from sojourn.config import ServerConfig
from sojourn.errors import NotFound
from sojourn.server.admission import Gate
from sojourn.server.seam import Engine
from sojourn.timeline.finished import FinishedRecords
from sojourn.timeline.metrics import Metrics
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.system import SystemFacts

_MAX_SHOWN_NAME = 100


@dataclass(frozen=True, slots=True)
class ServerContext:
    config: ServerConfig
    gate: Gate
    metrics: Metrics
    recorder: Recorder | None  # None: no records are kept
    finished: FinishedRecords | None
    system: SystemFacts
    scheduling_policy: str
    started_at: int  # Unix seconds


def _of_request(request: Request) -> ServerContext:
    context = request.app.state.context
    assert isinstance(context, ServerContext)
    return context


Context = Annotated[ServerContext, Depends(_of_request)]


def served_model(engine: Engine, name: str | None) -> str:
    """The name that replies show. A name is only ever compared with the served ones. Raises NotFound."""
    if name is None:
        return engine.served_names[0]
    if name not in engine.served_names:
        shown = name[:_MAX_SHOWN_NAME].encode("ascii", "backslashreplace").decode()
        raise NotFound(f"The model {shown} does not exist here; see /v1/models.", param="model", code="model_not_found")
    return name
