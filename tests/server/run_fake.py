"""A program of its own: `serve()` with a fake engine, for tests that need signals and exit codes.

Arguments: port, then JSON with the attributes of FakeEngine to set, `shutdown_timeout`, `no_restart`,
`load_seconds`, `load_error`, and `dies_after` (seconds until the engine's state is dead).
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys

from sojourn.config import ServerConfig
from sojourn.errors import BadModelFile
from sojourn.server.seam import Engine
from sojourn.server.serve import serve
from tests.server.fake_engine import FakeEngine


def main() -> int:
    options = json.loads(sys.argv[2])
    config = ServerConfig(
        shutdown_timeout=options.pop("shutdown_timeout", 30.0), no_restart=options.pop("no_restart", False)
    )
    load_seconds = options.pop("load_seconds", 0.0)
    load_error = options.pop("load_error", None)
    dies_after = options.pop("dies_after", None)
    engine = FakeEngine()
    for name, value in options.items():
        setattr(engine, name, value)

    async def load() -> Engine:
        await asyncio.sleep(load_seconds)
        if load_error is not None:
            raise BadModelFile(load_error)
        if dies_after is not None:
            asyncio.get_running_loop().call_later(dies_after, setattr, engine, "state", "dead")
        return engine

    bound = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    try:
        code = asyncio.run(serve(load(), [bound], config, on_ready=lambda engine: print("ready", flush=True)))
    except BadModelFile as error:
        print(error.message, flush=True)
        return 1
    print(f"closed={engine.closed} drained={engine.drained}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
