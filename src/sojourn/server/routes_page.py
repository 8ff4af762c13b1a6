"""The page: its shell at `/` and its files at `/static/`, read once from the package. They hold no data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
SHELL = "index.html"  # names its files relative to the root, so that a proxy may put the server under a path
# Scripts, styles and data come from this server only, and nothing may frame the page. Ids and names come from clients;
# the page writes them as text, and this is the second lock.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    content_type: str
    etag: str


def _load() -> dict[str, PageFile]:
    """Every file of the page by its name. The names are a fixed table, so no path from a client reaches the disk."""
    files = {}
    for entry in resources.files("sojourn.server").joinpath("page").iterdir():
        body = entry.read_bytes()
        content_type = CONTENT_TYPES[entry.name.rpartition(".")[2]]
        files[entry.name] = PageFile(body, content_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return files


FILES = _load()


@router.head("/")
@router.get("/")
async def shell(request: Request) -> Response:
    return _answer(request, SHELL)


@router.head("/static/{name}")
@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    if name not in FILES or name == SHELL:
        raise HTTPException(404)
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    """Browsers keep the file and ask each time whether it is still the same: an upgraded server shows at once."""
    file = FILES[name]
    headers = {"etag": file.etag, "cache-control": "no-cache", **SECURITY_HEADERS}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={**headers, "content-type": file.content_type})
