"""`sojourn serve`: the order of starting. Port, then thread pools, then model file, then engine and HTTP together."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

import typer

from sojourn.cli import listener
from sojourn.cli.library_pools import limit_library_pools
from sojourn.cli.options import Settings
from sojourn.env import keep_records
from sojourn.errors import StartupError
from sojourn.timeline.system import SystemFacts

if TYPE_CHECKING:
    from sojourn.timeline.otel import Tracing
    from sojourn.timeline.recorder import Recorder

logger = logging.getLogger("sojourn.cli")


def serve_command(settings: Settings, facts: SystemFacts | None = None) -> None:
    """Serves until a signal. `facts` know where the settings come from. Raises StartupError before, and typer.Exit with
    the server's exit code after."""
    bound = listener.bind(settings.server.host, settings.server.port)
    set_up_logging(settings.server.log_level)
    limit_library_pools()
    with bound:
        raise typer.Exit(_serve(settings, bound, facts or SystemFacts()))


def _serve(settings: Settings, bound: socket.socket, facts: SystemFacts) -> int:
    with facts.stage("import the server"):
        # Here: these import NumPy, whose pools must be limited first, and a port clash must not wait for any of them.
        import uvloop

        from sojourn.cli.compose import start_llm
        from sojourn.cli.progress import fetch
        from sojourn.cli.screen import startup_screen
        from sojourn.server.seam import Engine
        from sojourn.server.serve import serve
        from sojourn.timeline.recorder import Recorder

    url = listener.url(bound)
    recorder = None
    if keep_records():
        recorder = Recorder(origin_ns=facts.origin_ns, record_text=settings.server.record_text)

    tracing = _start_tracing(settings.server.otlp_traces_endpoint, recorder)

    def announce(engine: Engine) -> None:
        print(startup_screen(engine.info, settings, url), flush=True)

    with facts.stage("find the model"):
        path = fetch(settings.engine.model)
    logger.info("listening on %s while %s is loading", url, settings.engine.model)
    running = serve(
        start_llm(settings, path, recorder, facts),
        [bound],
        settings.server,
        scheduling_policy=settings.engine.scheduler.scheduling_policy,
        recorder=recorder,
        system=facts,
        views=[] if tracing is None or recorder is None else [tracing.view(recorder)],
        on_ready=announce,
    )
    try:
        return uvloop.run(running)
    finally:
        if tracing is not None:
            tracing.close()


def _start_tracing(endpoint: str | None, recorder: Recorder | None) -> Tracing | None:
    """Raises StartupError without the library, without records, or for what is no address."""
    if endpoint is None:
        return None
    if recorder is None:
        raise StartupError("--otlp-traces-endpoint sends records, and SOJOURN_RECORDS=0 keeps none.")
    try:
        from sojourn.timeline.otel import otlp_tracing  # here: only this flag needs the extra `otel`
    except ModuleNotFoundError as error:
        raise StartupError(
            f"--otlp-traces-endpoint needs OpenTelemetry ({error.name} is missing): pip install 'sojourn[otel]'."
        ) from error
    return otlp_tracing(endpoint)


def set_up_logging(level: str) -> None:
    """Lines on stderr. uvicorn says only what goes wrong: its start is on our screen, its requests are in our log."""
    handler = logging.StreamHandler()
    # A filter of the handler: uvicorn sets its loggers' levels itself, later than this.
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or not record.name.startswith("uvicorn"))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=level.upper(), handlers=[handler])
