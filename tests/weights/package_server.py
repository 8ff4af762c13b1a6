"""A package index on this machine: pages in JSON or HTML, wheels with Range support, faults on request. Tests only."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def wheel_of(member: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, data)
    return buffer.getvalue()


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(password.encode()).decode()


@dataclass
class PackageServer:
    """What is served, what goes wrong, and what was asked for."""

    url: str = ""
    html: bool = False
    wheels: dict[str, bytes] = field(default_factory=dict)  # file name -> content
    wrong_hashes: set[str] = field(default_factory=set)
    cut_after: list[int] = field(default_factory=list)  # each wheel request uses one up: bytes sent before the cut
    errors: list[int] = field(default_factory=list)  # each wheel request uses one up: a status sent instead
    ranges: bool = True
    password: str | None = None  # "user:password" that every request must bring
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range header

    def wheel_requests(self) -> list[str | None]:
        return [asked for path, asked in self.requests if path.endswith(".whl")]

    def page(self, package: str) -> tuple[str, bytes] | None:
        names = [name for name in self.wheels if name.startswith(package.replace("-", "_") + "-")]
        if not names:
            return None
        if self.html:
            links = "".join(f'<a href="../../files/{n}#sha256={self.sha256(n)}">{n}</a><br>' for n in names)
            return "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
        files = [{"filename": n, "url": f"{self.url}/files/{n}", "hashes": {"sha256": self.sha256(n)}} for n in names]
        return "application/vnd.pypi.simple.v1+json", json.dumps({"files": files}).encode()

    def sha256(self, name: str) -> str:
        return "0" * 64 if name in self.wrong_hashes else hashlib.sha256(self.wheels[name]).hexdigest()


@contextmanager
def serve_packages() -> Iterator[PackageServer]:
    state = PackageServer()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            return

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.requests.append((self.path, asked))
            if state.password and self.headers.get("Authorization") != basic(state.password):
                self.send(401, "text/plain", b"")
                return
            if match := re.fullmatch(r"/simple/([^/]+)/", self.path):
                page = state.page(match[1])
                self.send(200 if page else 404, *(page or ("text/plain", b"no such package")))
            else:
                self.send_wheel(state.wheels.get(self.path.removeprefix("/files/")), asked)

        def send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_wheel(self, content: bytes | None, asked: str | None) -> None:
            if content is None or state.errors:
                self.send(state.errors.pop(0) if state.errors else 404, "text/plain", b"")
                return
            start = int(asked[len("bytes=") : -1]) if asked and state.ranges else 0
            if start >= len(content):
                self.send(416, "text/plain", b"")
                return
            body = content[start:]
            sent = body[: state.cut_after.pop(0)] if state.cut_after else body
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(sent)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
