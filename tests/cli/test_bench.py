"""`sojourn bench` as a user runs it: against a server, and in a process of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.servers import Server

MICRO = str(Path(__file__).parents[1] / "data" / "micro" / "llama-chat")


def test_serve_measures_a_running_server(sojourn, tmp_path):
    server = Server(MICRO, "--num-kv-blocks", "64", "--in-process")
    try:
        load = ("--requests", "4", "--concurrency", "2", "--prompt-words", "5", "-n", "6")
        written = tmp_path / "report.json"
        ran = sojourn("bench", "serve", "--url", server.url(), *load, "--json", str(written))
        chat = sojourn("bench", "serve", "--url", server.url(), *load, "--api", "chat")
        refused = sojourn("bench", "serve", "--url", server.url(), "--model", "nobody", "--requests", "1")
    finally:
        server.kill()
    assert ran.code == 0, ran.err
    assert re.search(r"requests  4 of 4 succeeded", ran.out)
    assert re.search(r"24 output$", ran.out, re.MULTILINE)
    assert json.loads(written.read_text())["report"]["output_tokens"] == 24
    assert "24 output" in chat.out
    assert refused.code == 1
    assert "404" in refused.err


def test_serve_without_a_server_is_one_line(sojourn):
    ran = sojourn("bench", "serve", "--url", "http://127.0.0.1:9")
    assert ran.code == 1
    assert ran.err.startswith("sojourn: No server answers")


def test_offline_measures_every_row_asked_for(sojourn, tmp_path):
    written = tmp_path / "report.json"
    rows = ("--streams", "1", "--streams", "3", "--prefill-tokens", "40", "--repeats", "2")
    ran = sojourn(
        "bench", "offline", MICRO, *rows, "--context-tokens", "8", "-n", "6", "--num-kv-blocks", "64",
        "--json", str(written),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = json.loads(written.read_text())
    assert [row["streams"] for row in report["decode"]] == [1, 3]
    assert [row["tokens"] for row in report["prefill"]] == [40]
    assert re.search(r"^40 tokens +\d", ran.out, re.MULTILINE)
    first, second = (row["bytes_per_step"] for row in report["decode"])
    kv_per_token = report["info"]["kv_bytes"] // (64 * report["info"]["block_size"])
    assert second - first == (3 - 1) * (8 + 6 // 2) * kv_per_token
    assert first > 11 * kv_per_token
