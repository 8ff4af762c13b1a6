"""Measures how long `sojourn serve` takes from its start until /ready answers 200, with the default model in the cache.

Takes arguments of `sojourn serve`. Prints each of a few runs. Standard library only.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

RUNS = 5
POLL_S = 0.01
GIVE_UP_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=GIVE_UP_S) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError):  # nobody listens yet, or 503 while the model loads
        return False


def one_run(arguments: list[str]) -> float:
    """Seconds from starting the process to the first 200."""
    port = free_port()
    start = time.monotonic()
    command = [sys.executable, "-m", "sojourn.cli", "serve", "--port", str(port), "--log-level", "error", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not is_ready(f"http://127.0.0.1:{port}/ready"):
            if process.poll() is not None or time.monotonic() - start > GIVE_UP_S:
                sys.exit("the server did not become ready")
            time.sleep(POLL_S)
        return time.monotonic() - start
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def main() -> None:
    seconds = [one_run(sys.argv[1:]) for _ in range(RUNS)]
    print(f"ready after {', '.join(f'{value:.2f}' for value in seconds)} s; median {sorted(seconds)[RUNS // 2]:.2f} s")


if __name__ == "__main__":
    main()
