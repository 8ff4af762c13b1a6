"""One file from one URL into one path: streamed, resumed, checked. Owns the `.part` file while it runs.

A transfer that breaks off leaves its `.part` file, and the next try, in this process or a later one, asks the server
for the rest (HTTP Range). Nothing gets its final name before its SHA-256 is right.
"""

from __future__ import annotations

import base64
import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from sojourn.errors import StartupError

# Called with a label, the bytes done and the bytes in all (None: unknown). The first call of a label opens its bar.
Progress = Callable[[str, int, int | None], None]

_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.5


def silent(label: str, done: int, total: int | None) -> None:
    """The progress of a caller who wants none."""


def open_url(url: str, headers: dict[str, str]) -> Any:
    """An open response. `user:password@` in the URL is sent as basic authentication. OSError when there is none."""
    user, clean = split_credentials(url)
    if user:
        token = base64.b64encode(unquote(user).encode()).decode()
        headers = {**headers, "Authorization": f"Basic {token}"}
    request = urllib.request.Request(clean, headers={"User-Agent": "sojourn", **headers})
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection; status and reason stay readable
        raise


def split_credentials(url: str) -> tuple[str, str]:
    """("user:password" or "", the URL without it): only the second may appear in a message."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return user, urlunsplit(parts._replace(netloc=host))


def download(url: str, target: Path, *, sha256: str, label: str, progress: Progress = silent) -> None:
    """Fetch `url` into `target`, whose folder exists.

    StartupError: no connection after several tries, or content whose SHA-256 is not `sha256`.
    """
    part = target.with_name(target.name + ".part")
    shown = split_credentials(url)[1]
    for fresh in (False, True):
        resumed = part.exists() and part.stat().st_size > 0
        _fetch_all(url, part, label, progress)
        found = _sha256(part)
        if found == sha256:
            part.replace(target)
            return
        part.unlink()
        if fresh or not resumed:  # what was resumed may have been damaged long ago: one try from the start
            raise StartupError(
                f"{label}: wrong checksum from {shown}: expected SHA-256 {sha256}, found {found}; try again later"
            )


def _fetch_all(url: str, part: Path, label: str, progress: Progress) -> None:
    """Repeat until the file is whole, each time asking for the rest. A try that brought bytes does not count."""
    failures, shown = 0, split_credentials(url)[1]
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _fetch_rest(url, part, before, label, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 429):
                raise StartupError(f"{label}: {shown} answers {error.code} {error.reason}") from None
            reason = f"{error.code} {error.reason}"
        except (OSError, HTTPException) as error:
            reason = str(getattr(error, "reason", error))
        grown = part.exists() and part.stat().st_size > before
        failures = 1 if grown else failures + 1
        if failures >= _ATTEMPTS:
            raise StartupError(f"{label}: cannot download {shown}: {reason}; run the command again to continue")
        time.sleep(_FIRST_PAUSE_S * 2 ** (failures - 1))


def _fetch_rest(url: str, part: Path, have: int, label: str, progress: Progress) -> None:
    """Append what is missing after `have` bytes. OSError: the connection ended before the file did."""
    try:
        response = open_url(url, {"Range": f"bytes={have}-"} if have else {})
    except urllib.error.HTTPError as error:
        if have and error.code == 416:  # nothing after what we have: it is whole, or not this file at all
            return
        raise
    with response:
        start = have if response.status == 206 else 0
        total = _total_bytes(response, start)
        with part.open("r+b" if part.exists() else "wb") as file:
            file.truncate(start)
            file.seek(start)
            done = start
            progress(label, done, total)
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                progress(label, done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _total_bytes(response: HTTPResponse, start: int) -> int | None:
    length = response.headers.get("Content-Length")
    return start + int(length) if length is not None and length.isdigit() else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
