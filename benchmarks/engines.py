"""Starts and stops the engines that compare.py measures, and reads what their processes hold in memory.

Owns command lines and processes; sends no load.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sojourn.bench.exchange import Endpoint

READY_LIMIT_S = 300.0
POLL_S = 0.01


def commit() -> str:
    """Which version of Sojourn is measured, as git names it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).resolve().parent,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"


@dataclass(frozen=True)
class Running:
    """A server that is ready. `ready_s` is the time from its start until it said so."""

    endpoint: Endpoint
    model: str
    ready_s: float
    pid: int
    log: Path

    def processes(self) -> list[int]:
        """The server, then its children."""
        return _tree(self.pid)

    def memory(self) -> int:
        """Bytes that the server and its children hold; pages shared by several of them count once (PSS)."""
        return sum(_pss(pid) for pid in self.processes())


@contextmanager
def sojourn(model: str, arguments: Sequence[str] = ()) -> Iterator[Running]:
    command = [sys.executable, "-m", "sojourn.cli", "serve", model, *arguments, "--log-level", "warning", "--port"]
    with serving(command, model) as running:
        yield running


@contextmanager
def serving(command: Sequence[str], model: str) -> Iterator[Running]:
    """A server of ours that `command` starts, given a port as its last argument."""
    port = _free_port()
    with _serving([*command, str(port)], port, "/ready", model) as running:
        yield running


@contextmanager
def llama_server(binary: Path, model: Path, *, threads: int, slots: int, context: int) -> Iterator[Running]:
    """With KV streams of their own for several slots: its mode for throughput. `context` tokens for each slot."""
    port = _free_port()
    command = [str(binary), "-m", str(model), "--port", str(port), "-t", str(threads), "-np", str(slots)]
    command += ["-c", str(context * slots)]
    if slots > 1:
        command.append("--no-kv-unified")
    with _serving(command, port, "/health", "m") as running:
        yield running


def openvino(python: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Runs openvino_peer.py in its own environment; see there for `request` and the answer."""
    script = Path(__file__).with_name("openvino_peer.py")
    done = subprocess.run(
        [str(python), str(script)], input=json.dumps(request), check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"OpenVINO GenAI failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def _serving(command: list[str], port: int, ready: str, model: str) -> Iterator[Running]:
    with tempfile.NamedTemporaryFile(prefix="compare-", suffix=".log") as log:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while not _answers(f"http://127.0.0.1:{port}{ready}"):
                if process.poll() is not None or time.monotonic() - start > READY_LIMIT_S:
                    sys.exit(f"{' '.join(command)}\ndid not become ready:\n{Path(log.name).read_text()[-2000:]}")
                time.sleep(POLL_S)
            took = time.monotonic() - start
            yield Running(Endpoint("127.0.0.1", port), model, took, process.pid, Path(log.name))
        finally:
            process.terminate()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):  # nobody listens, 503 while it loads, a busy machine
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _tree(int(child)))]


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(pid: int) -> float:
    """What the threads that a process has now took of the CPUs, in user and kernel mode."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def load_average() -> float:
    return os.getloadavg()[0]
