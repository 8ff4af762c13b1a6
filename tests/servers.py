"""A `sojourn serve` process for tests that use the product as its users do."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

COMMAND = (sys.executable, "-c", "from sojourn.cli.main import run; run()")
READY_TIMEOUT = 90.0  # a bound for a loaded machine; how fast it is on a quiet one is measured, not tested


class Server:
    """A running `sojourn serve` and what it has printed on stdout."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def url(self) -> str:
        """Address printed by the start-up screen, once it is there."""
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"API\s+(http://\S+)/v1,", self.output)
            if found:
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"not ready: {self.output}")

    def end(self) -> int:
        """The exit code, once it has ended."""
        code = self.process.wait(timeout=30)
        self._reader.join()
        return code

    def engine_pid(self) -> int:
        """The engine's process, the only child of the server's."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def kill(self) -> None:
        """Ends it without ceremony, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        assert self.process.stdout is not None
        self.process.stdout.close()
