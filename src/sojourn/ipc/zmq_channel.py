"""Owns the ZeroMQ line between two processes: `ipc://` sockets in a private directory, and B's end. Never a TCP port.

Whoever sends connects and whoever receives binds, so a sender may queue messages before the other side is up.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import zmq

from sojourn.errors import StartupError
from sojourn.ipc.messages import FromEngine, ToEngine, decode_to_engine, encode

MAX_SOCKET_PATH = 100  # bytes; the kernel's own limit for a Unix socket is 107
LAST_WORDS_MS = 1000  # how long a closing engine waits for A to take its last messages


class Addresses(msgspec.Struct, frozen=True):
    """A directory only its owner may enter, and the sockets in it."""

    directory: str

    @property
    def requests(self) -> str:
        return f"ipc://{self.directory}/requests"

    @property
    def outputs(self) -> str:
        return f"ipc://{self.directory}/outputs"


def make_directory() -> Addresses:
    """Creates the directory with mode 0700. Raises StartupError where a socket path would be too long."""
    directory = tempfile.mkdtemp(prefix="sojourn-")  # mkdtemp gives mode 0700
    if len(os.fsencode(directory)) + len("/requests") > MAX_SOCKET_PATH:
        Path(directory).rmdir()
        raise StartupError(f"The path {directory} is too long for a socket. Set TMPDIR to a shorter directory.")
    return Addresses(directory)


def remove_directory(addresses: Addresses) -> None:
    """Idempotent: whichever process outlives the other calls it."""
    shutil.rmtree(addresses.directory, ignore_errors=True)


class ZmqEngineEnd:
    """B's end."""

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PULL)
        self._requests.setsockopt(zmq.LINGER, 0)
        self._requests.setsockopt(zmq.RCVHWM, 0)
        self._requests.bind(addresses.requests)
        self._outputs = self._context.socket(zmq.PUSH)
        self._outputs.setsockopt(zmq.SNDHWM, 0)
        self._outputs.setsockopt(zmq.LINGER, LAST_WORDS_MS)
        self._outputs.connect(addresses.outputs)

    def send(self, message: FromEngine) -> None:
        self._outputs.send(encode(message), zmq.NOBLOCK)

    def receive(self) -> ToEngine | None:
        try:
            return decode_to_engine(self._requests.recv())
        except zmq.ContextTerminated:
            self._requests.close()  # here, because a socket belongs to one thread; `term` waits for it
            return None

    def close(self) -> None:
        self._outputs.close()
        self._context.term()
