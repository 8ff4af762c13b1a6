"""Runs the installed command as a user does: a process of its own, its output and its exit code."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from tests.servers import COMMAND


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    seconds: float


@pytest.fixture
def sojourn() -> Callable[..., Ran]:
    def run(*args: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> Ran:
        start = time.monotonic()
        done = subprocess.run(
            [*COMMAND, *args],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            env={**os.environ, **(env or {})},
        )
        return Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - start)

    return run


@pytest.fixture(scope="session")
def command() -> tuple[str, ...]:
    return COMMAND
