#!/usr/bin/env python3
"""Watch requests of a running server, and read where their time went.

Three short requests come first. Once all of them decode, a long one of 141 tokens arrives. Under a budget of 64 tokens
a step its prefill is cut into chunks, and the short ones get a token in every step meanwhile. Then the server is asked
for the long one's record, which is printed as `sojourn trace` prints it, and the server's page is opened.

    python examples/watch_requests.py [--url http://127.0.0.1:8000] [--api-key KEY] [--lang en|zh] [--no-browser]

Without --url it starts a server of its own, and stops it when you press Enter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import threading
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator
from typing import Any

from sojourn.timeline.table import table

SHORT_PROMPTS = ["Hello!", "What day is it today?", "Tell me a joke."]
LONG_PROMPT = list(range(500, 641))  # token ids, so that it has 141 of them for every model

TEXTS = {
    "en": {
        "head": "request                                 TTFT    mean TPOT",
        "row": "{id:34s} {ttft:7.1f} ms {tpot:8.1f} ms",
        "open": "The page, with every request and step: {url}",
        "enter": "Press Enter to stop the server.",
    },
    "zh": {
        "head": "请求                                    TTFT    平均 TPOT",
        "row": "{id:34s} {ttft:7.1f} ms {tpot:8.1f} ms",
        "open": "在网页上查看所有请求和每一步：{url}",
        "enter": "按回车停止服务。",
    },
}


class Client:
    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, self._headers), timeout=120)

    def get(self, path: str) -> Any:
        with self._open(path) as response:
            return json.load(response)

    def complete(self, prompt: str | list[int], max_tokens: int, on_token: Callable[[], object]) -> str:
        """Streams a completion and returns its id, under which the server keeps the record."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        reply_id = ""
        with self._open("/v1/completions", body) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    reply_id = json.loads(line[6:])["id"]
                    on_token()
        return reply_id


def run_scenario(client: Client) -> tuple[list[str], str]:
    """The ids of the short requests, and of the long one."""
    ids = [""] * len(SHORT_PROMPTS)
    decoding = [threading.Event() for _ in SHORT_PROMPTS]

    def run_short(i: int) -> None:
        ids[i] = client.complete(SHORT_PROMPTS[i], 40, decoding[i].set)

    threads = [threading.Thread(target=run_short, args=(i,)) for i in range(len(SHORT_PROMPTS))]
    for thread in threads:
        thread.start()
    for event in decoding:
        event.wait()
    long_id = client.complete(LONG_PROMPT, 6, lambda: None)
    for thread in threads:
        thread.join()
    return ids, long_id


@contextlib.contextmanager
def own_server() -> Iterator[str]:
    """Starts `sojourn serve` with a small token budget, so that the long prompt takes several steps."""
    options = ["--port", "0", "--max-num-batched-tokens", "64", "--log-level", "warning"]
    command = [sys.executable, "-m", "sojourn.cli", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="")
                found = re.search(r"API +(http://\S+)/v1,", line)
                if found:
                    yield found[1]
                    return
            raise SystemExit("The server did not start; its messages are above.")
        finally:
            process.terminate()


def show(client: Client, language: str, browser: bool) -> None:
    text = TEXTS[language]
    shorts, long = run_scenario(client)
    records = {request_id: client.get(f"/v1/requests/{request_id}") for request_id in (*shorts, long)}
    print()
    print(table(records[long], language))
    print("\n" + text["head"])
    for request_id, record in records.items():
        print(text["row"].format(id=request_id[:34], ttft=record["ttft"]["total_ms"], tpot=record["tpot_ms"]))
    print("\n" + text["open"].format(url=client.url))
    if browser:
        webbrowser.open(client.url)  # False where there is no display: the address is printed anyway


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--api-key", help="the server's key")
    parser.add_argument("--lang", choices=sorted(TEXTS), default="en")
    parser.add_argument("--no-browser", action="store_true", help="only print the page's address")
    args = parser.parse_args()
    if args.url:
        show(Client(args.url, args.api_key), args.lang, not args.no_browser)
        return
    with own_server() as url:
        show(Client(url, None), args.lang, not args.no_browser)
        if sys.stdin.isatty():
            input(TEXTS[args.lang]["enter"])


if __name__ == "__main__":
    main()
