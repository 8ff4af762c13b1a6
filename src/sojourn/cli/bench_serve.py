"""`sojourn bench serve`: what the clients of a running server see. Prints a table; --json writes the figures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import uvloop

from sojourn.bench.exchange import Endpoint
from sojourn.bench.http_load import Api, Load, LoadReport, first_model, run_load
from sojourn.bench.tables import load_table
from sojourn.cli.json_report import write_report
from sojourn.cli.progress import ProgressBar
from sojourn.errors import SojournError


def bench_serve_command(
    url: str, model: str | None, load: Load, *, api: Api, api_key: str | None, json: Path | None
) -> None:
    """Raises StartupError when nobody answers, SojournError when a request failed."""
    endpoint = Endpoint.parse(url, api_key)
    report = uvloop.run(_serve(endpoint, model, load, api))
    print(load_table(report))
    if json is not None:
        write_report(json, {"url": url, "load": dataclasses.asdict(load), "report": report})
    if report.failed:
        raise SojournError(f"{report.failed} of {report.requests} requests failed; the first: {report.errors[0]}")


async def _serve(endpoint: Endpoint, model: str | None, load: Load, api: Api) -> LoadReport:
    name = model or await first_model(endpoint)
    with ProgressBar() as bar:
        return await run_load(
            endpoint, name, load, api=api, on_progress=lambda ended, total: bar.update("requests", ended, total)
        )
