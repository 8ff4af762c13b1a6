"""Puts the application together: middleware from the outside in, routes, error answers. Holds no logic of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import FastAPI

from sojourn import __version__
from sojourn.config import ServerConfig
from sojourn.server import (
    docs_page,
    error_map,
    routes_chat,
    routes_completions,
    routes_health,
    routes_models,
    routes_page,
    routes_timeline,
    routes_tokenize,
    routes_trace,
)
from sojourn.server.admission import Admission, Gate
from sojourn.server.auth import ApiKeys
from sojourn.server.context import ServerContext
from sojourn.server.error_map import ErrorBoundary
from sojourn.server.limits import BodyLimit
from sojourn.server.request_ids import RequestIdHeader
from sojourn.server.seam import Engine
from sojourn.timeline.finished import FinishedRecords, View
from sojourn.timeline.histograms import RequestHistograms
from sojourn.timeline.metrics import Metrics
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.system import SystemFacts


def create_app(
    engine: Engine | None,
    config: ServerConfig,
    *,
    scheduling_policy: str = "fcfs",
    recorder: Recorder | None = None,
    system: SystemFacts | None = None,
    views: Sequence[View] = (),
) -> FastAPI:
    """The HTTP application. Without an engine it answers 503 `loading` until
    `app.state.context.gate.attach(engine)`. Without a recorder it keeps no records, and `views` see none."""
    app = FastAPI(title="Sojourn", version=__version__, redirect_slashes=False, docs_url=None, redoc_url=None)
    gate = Gate(engine)
    histograms = None if recorder is None else RequestHistograms()
    metrics = Metrics(config.metrics_prefix, histograms)
    finished = None
    if recorder is not None and histograms is not None:
        finished = FinishedRecords(recorder, [histograms.observe, *views])
    app.state.context = ServerContext(
        config=config,
        gate=gate,
        metrics=metrics,
        recorder=recorder,
        finished=finished,
        system=system or SystemFacts(),
        scheduling_policy=scheduling_policy,
        started_at=int(time.time()),
    )
    # The last one added is the outermost: a request meets them from the bottom up.
    app.add_middleware(BodyLimit)
    app.add_middleware(Admission, gate=gate, recorder=recorder)
    app.add_middleware(ApiKeys, keys=config.api_key)
    app.add_middleware(ErrorBoundary)
    app.add_middleware(RequestIdHeader, metrics=metrics, recorder=recorder)
    generation = (routes_chat, routes_completions, routes_models, routes_tokenize)
    for routes in (*generation, routes_health, routes_timeline, routes_trace, routes_page):
        app.include_router(routes.router)
    docs_page.install(app)
    error_map.install(app)
    return app
