"""`sojourn trace`: whom it asks for what, and what its failures look like."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn.timeline.table import table
from tests.timeline.samples import LONG, long_record

PATHS = {
    f"/v1/requests/{LONG}": long_record(),
    "/v1/requests?limit=1": {"data": [{"request_id": LONG}], "has_more": True},
}


class Handler(http.server.BaseHTTPRequestHandler):
    """A server that has one record, behind a key."""

    def do_GET(self) -> None:
        found = PATHS.get(self.path, {"error": {"message": "There is no record of it."}})
        if self.headers.get("Authorization") != "Bearer secret":
            found = {"error": {"message": "Wrong key."}}
        data = json.dumps(found).encode()
        self.send_response(404 if "error" in found else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("which", [LONG, "--last"])
def test_it_prints_the_table_of_the_servers_record(sojourn, url, which):
    ran = sojourn("trace", which, "--url", url, "--api-key", "secret")
    assert (ran.code, ran.out) == (0, table(long_record()) + "\n")


def test_in_chinese(sojourn, url):
    ran = sojourn("trace", "--last", "--url", url, "--lang", "zh", env={"SOJOURN_API_KEY": "secret"})
    assert ran.out == table(long_record(), "zh") + "\n"


def test_a_saved_record_needs_no_server(sojourn, tmp_path: Path):
    file = tmp_path / "record.json"
    file.write_text(json.dumps(long_record()))
    assert sojourn("trace", "--file", str(file)).out == table(long_record()) + "\n"


def test_failures_are_one_clear_line(sojourn, url, tmp_path: Path):
    words, wrong = tmp_path / "words.txt", tmp_path / "wrong.json"
    words.write_text("hello")
    wrong.write_text('{"data": []}')
    for args, message in [
        (("no-such-id", "--url", url, "--api-key", "secret"), "404: There is no record of it."),
        (("--last", "--url", url), "Wrong key."),
        (("--last", "--url", "http://127.0.0.1:9"), "No server answers at http://127.0.0.1:9"),
        (("--last", "--url", "ftp://x"), "no http address"),
        (("--file", str(tmp_path / "none")), "can't read"),
        (("--file", str(words)), "holds no JSON"),
        (("--file", str(wrong)), "no request record"),
    ]:
        ran = sojourn("trace", *args)
        assert (ran.code, ran.out) == (1, "")
        assert message in ran.err
        assert ran.err.count("\n") == 1


@pytest.mark.parametrize("args", [(), ("x", "--last"), ("--last", "--file", "x")])
def test_exactly_one_record_is_asked_for(sojourn, args):
    ran = sojourn("trace", *args)
    assert ran.code == 2
    assert "give one of" in ran.err
