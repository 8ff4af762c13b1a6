"""Both kinds of engine behind one fixture, so that every test of the line and of engine life runs against both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sojourn.config import EngineConfig
from sojourn.core.loop import serve
from sojourn.ipc.launcher import Launcher, ProcessLauncher, ThreadLauncher
from tests.ipc import fake_engine

FAKE_ENGINE_COMMAND = (sys.executable, str(Path(fake_engine.__file__)))


def make_launcher(kind: str, model: str = "fake") -> Launcher:
    if kind == "process":
        return ProcessLauncher(EngineConfig(model=model), command=FAKE_ENGINE_COMMAND)
    return ThreadLauncher(lambda end: serve(lambda on_progress: fake_engine.build_fake(model, on_progress), end))


@pytest.fixture(params=["thread", "process"])
def launcher(request: pytest.FixtureRequest) -> Callable[..., Launcher]:
    """launcher(model="fake") -> Launcher"""
    return lambda model="fake": make_launcher(request.param, model)


@pytest.fixture
def process_launcher() -> Callable[..., Launcher]:
    return lambda model="fake": make_launcher("process", model)
