"""`sojourn trace`: finds a request's record, at a server or in a file, and prints its table. Owns no format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sojourn.cli.remote_server import RemoteServer
from sojourn.errors import StartupError
from sojourn.timeline.table import table
from sojourn.timeline.table_texts import Language

REQUESTS = "/v1/requests"


def trace_command(request_id: str | None, file: Path | None, server: RemoteServer, language: Language) -> None:
    """Without an id and a file it is the server's latest request. Raises StartupError."""
    record = _from_file(file) if file is not None else _from_server(server, request_id)
    try:
        print(table(record, language))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        place = file or server.url
        raise StartupError(f"What {place} holds is no request record of this version ({error!r}).") from error


def _from_server(server: RemoteServer, request_id: str | None) -> Any:
    if request_id is None:
        try:
            found = server.get(f"{REQUESTS}?limit=1")["data"]
            if not found:
                raise StartupError(f"{server.url} has no request on record yet.")
            request_id = found[0]["request_id"]
        except (LookupError, TypeError) as error:
            raise StartupError(f"What answers at {server.url} keeps no request records.") from error
    return server.get(f"{REQUESTS}/{quote(str(request_id), safe='')}")


def _from_file(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"--file: can't read {file}: {error.strerror}.") from error
    except ValueError as error:
        raise StartupError(f"--file: {file} holds no JSON; save the answer of {REQUESTS}/ID in it.") from error
