"""Clients that keep a server busy: short and long prompts, shared beginnings, some that leave early."""

from __future__ import annotations

import itertools
import json
import threading
import time
import urllib.request
from typing import Any

SHARED = "You are the librarian of a small town. Answer briefly, kindly and with one example from a book. " * 3
TOPICS = ("rivers", "bridges", "clocks", "bread", "tides", "maps", "glass", "bees")


class Load:
    """Six clients, each with one request after the other, until closed."""

    def __init__(self, url: str, clients: int = 6) -> None:
        self.url = url
        self.replies: list[str] = []  # ids of those that were answered to the end
        self._stop = threading.Event()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def until_finished(self, count: int, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while len(self.replies) < count:
            assert time.monotonic() < deadline, "the load made no progress"
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            reply = self._ask(number)
            if reply is not None:
                self.replies.append(reply)

    def _ask(self, number: int) -> str | None:
        topic = TOPICS[number % len(TOPICS)]
        if number % 5 == 4:
            body = {"prompt": f"Notes about {topic}: " * 20, "max_tokens": 40}
            return self._stream("/v1/completions", body, leave=False)
        messages = [{"role": "system", "content": SHARED}, {"role": "user", "content": f"Tell me about {topic}."}]
        body = {"messages": messages[number % 3 == 0 :], "max_tokens": 60 + 10 * (number % 5)}
        return self._stream("/v1/chat/completions", body, leave=number % 11 == 10)

    def _stream(self, path: str, body: dict[str, Any], *, leave: bool) -> str | None:
        sent = json.dumps({**body, "stream": True, "ignore_eos": True, "temperature": 0}).encode()
        call = urllib.request.Request(self.url + path, sent, {"content-type": "application/json"})
        found = None
        with urllib.request.urlopen(call, timeout=120) as reply:
            for number, line in enumerate(reply):
                if self._stop.is_set() or (leave and number > 40):
                    return None
                if line.startswith(b"data: {"):
                    found = json.loads(line[6:])["id"]
        return found


def get_json(url: str, key: str | None = None) -> Any:
    call = urllib.request.Request(url, headers={} if key is None else {"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(call, timeout=20) as reply:
        return json.load(reply)
