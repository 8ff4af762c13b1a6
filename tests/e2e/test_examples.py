"""The example that watches requests, against a server whose budget cuts its long prompt into chunks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.servers import Server

ROOT = Path(__file__).parents[2]
MICRO = ROOT / "tests" / "data" / "micro" / "llama-chat"


def test_the_long_prompt_is_computed_in_chunks_and_the_account_is_printed() -> None:
    server = Server(str(MICRO), "--max-num-batched-tokens", "64", "--num-kv-blocks", "160", "--threads", "1")
    try:
        example = [sys.executable, str(ROOT / "examples" / "watch_requests.py")]
        ran = subprocess.run(
            [*example, "--url", server.url(), "--no-browser", "--lang", "zh"],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        server.kill()
    assert ran.returncode == 0, ran.stderr
    chunks = [(int(first), int(last)) for first, last in re.findall(r"prefill 第 (\d+)～(\d+) 个", ran.stdout)]
    assert len(chunks) >= 3
    assert [first for first, _ in chunks] == [0, *(last + 1 for _, last in chunks[:-1])]
    assert chunks[-1][1] == 140
    assert ran.stdout.count("decode 1 个 token") == 5
    assert "未归属" in ran.stdout
    assert len(re.findall(r"^cmpl-\w+ +[\d.]+ ms +[\d.]+ ms$", ran.stdout, re.MULTILINE)) == 4
