"""Owns how a fresh engine process learns what to be: one message on its standard input. Never a shell, never a file.

The pipe stays open for as long as A lives. Its end of file is how B notices that A is gone.
"""

from __future__ import annotations

import os
import struct
import threading

import msgspec

from sojourn.config import EngineConfig

STDIN = 0
ORPHANED = 3  # exit status when A went first
_LENGTH = struct.Struct("!I")


class Bootstrap(msgspec.Struct, frozen=True):
    config: EngineConfig
    line: int  # the file descriptor of B's half, which B inherits under the same number


def encode_bootstrap(bootstrap: Bootstrap) -> bytes:
    payload = msgspec.msgpack.encode(bootstrap)
    return _LENGTH.pack(len(payload)) + payload


def read_bootstrap(fd: int = STDIN) -> Bootstrap:
    """Blocks until it is there. Raises EOFError when A died first, msgspec.DecodeError on anything else."""
    (length,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size))
    return msgspec.msgpack.decode(_read_exactly(fd, length), type=Bootstrap)


def watch_parent() -> None:
    """Ends this process, whatever its other threads are doing, as soon as A's end of standard input is gone."""
    threading.Thread(target=_die_with_parent, name="sojourn-parent", daemon=True).start()


def _die_with_parent() -> None:
    while os.read(STDIN, 4096):  # the descriptor itself: a buffered reader would hold a lock at interpreter exit
        continue
    os._exit(ORPHANED)


def _read_exactly(fd: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(fd, count - len(data))
        if not part:
            raise EOFError("standard input ended before the configuration was complete")
        data += part
    return data
