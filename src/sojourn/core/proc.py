"""Owns process B's entry: reads its configuration, loads the engine, runs the loop, and dies when process A does.

Started by `ipc.launcher`, never by hand. Signals are ignored: Ctrl-C and service managers reach the whole process
group, but when to stop is A's decision, since running requests may still have to finish.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable

import msgspec

from sojourn.config import EngineConfig
from sojourn.core.build import build_engine
from sojourn.core.engine_core import EngineCore
from sojourn.core.loop import OnProgress, serve
from sojourn.errors import StartupError
from sojourn.ipc.bootstrap import read_bootstrap, watch_parent
from sojourn.ipc.channel import EngineEnd
from sojourn.ipc.socket_channel import SocketEngineEnd


def engine_server(config: EngineConfig) -> Callable[[EngineEnd], None]:
    """What `ThreadLauncher` runs: the engine of this configuration, until it is told to stop."""

    def build(on_progress: OnProgress) -> EngineCore:
        return build_engine(config, on_progress)

    return lambda end: serve(build, end)


def main() -> int:
    logging.basicConfig(format="%(levelname)s engine: %(message)s", level=logging.INFO)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        bootstrap = read_bootstrap()
    except (EOFError, msgspec.DecodeError) as error:
        print(f"sojourn.core.proc is started by the server, not by hand: {error}", file=sys.stderr)
        return 1
    watch_parent()
    try:
        engine_server(bootstrap.config)(SocketEngineEnd(bootstrap.line))
    except StartupError:
        return 1  # A has its one line and prints it
    except Exception:
        return 1  # logged where it happened
    return 0


if __name__ == "__main__":
    sys.exit(main())
