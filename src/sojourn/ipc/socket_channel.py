"""Owns the line between two processes: a pair of Unix sockets without a name, the frames on it, and B's end of it.

A frame is a message's length in 4 bytes, then the message. Nobody stands between the two processes: what one writes is
in the other's half when the system call returns, and stays there when the writer ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections import deque

from sojourn.errors import PayloadTooLarge
from sojourn.ipc.messages import FromEngine, ToEngine, decode_to_engine, encode

# A longer one has lost its frame. Text where a length should stand always gives more: its first byte is 0x20 or above.
MAX_MESSAGE_BYTES = 2**29 - 1
# Some thousand steps, so that the engine need not wait for a front end that is busy for a second. The kernel cuts it
# to net.core.wmem_max. There is no receive buffer to ask for: in a pair the sender's is the only one.
SEND_BUFFER_BYTES = 2**20
READ_BYTES = 2**16

_LENGTH = struct.Struct("!I")


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """A's half and B's. Without a name nobody else can connect; only a child that is given a half inherits it."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for half in pair:
        half.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return pair


def framed(message: ToEngine | FromEngine) -> bytes:
    """Raises PayloadTooLarge where the other side would take the frame for a broken one."""
    data = encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise PayloadTooLarge(f"A message between front end and engine would be {len(data)} bytes long.")
    return _LENGTH.pack(len(data)) + data


class FrameSplitter:
    """Cuts what arrives into encoded messages again, wherever it was cut on its way."""

    def __init__(self) -> None:
        self._held = bytearray()  # the beginning of a frame
        self._wanted = _LENGTH.size  # with less than this in `_held` no frame can be complete
        self._lost = False

    def feed(self, data: bytes) -> list[bytes]:
        """The messages completed by `data`, in order.

        A length that cannot be gives an empty one, which no decoder accepts. After it nobody knows where a frame
        begins, so there is never another.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._wanted:
                return []
            data = bytes(self._held)
            self._held.clear()
        messages: list[bytes] = []
        start = 0
        self._wanted = _LENGTH.size
        while len(data) - start >= _LENGTH.size and not self._lost:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > MAX_MESSAGE_BYTES:
                self._lost = True
                messages.append(b"")
                break
            end = start + _LENGTH.size + length
            if end > len(data):
                self._wanted = end - start
                break
            messages.append(data[start + _LENGTH.size : end])
            start = end
        if start < len(data) and not self._lost:
            self._held += memoryview(data)[start:]
        return messages


class SocketEngineEnd:
    """B's end."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is B's half, as this process inherited it."""
        self._outgoing = socket.socket(fileno=descriptor)
        self._outgoing.set_inheritable(False)  # a child of this process must not keep the line open
        self._incoming = self._outgoing.dup()  # the same half: each thread has its own to close
        self._readable = select.poll()
        self._readable.register(self._incoming, select.POLLIN)
        self._splitter = FrameSplitter()
        self._arrived: deque[bytes] = deque()

    def send(self, message: FromEngine) -> None:
        try:
            self._outgoing.sendall(framed(message))
        except ConnectionError:  # A is gone
            return

    def receive(self) -> ToEngine | None:
        while not self._arrived:
            data = self._read()
            if not data:
                self._incoming.close()
                return None
            self._arrived.extend(self._splitter.feed(data))
        return decode_to_engine(self._arrived.popleft())

    def close(self) -> None:
        if self._outgoing.fileno() < 0:
            return
        with contextlib.suppress(OSError):  # A closed first
            self._outgoing.shutdown(socket.SHUT_RDWR)  # only this wakes the thread in `receive`
        self._outgoing.close()

    def _read(self) -> bytes:
        """Empty at the line's end.

        Waits in `poll`, since Linux wakes a thread that waits in `recv` also whenever A has read one of our messages.
        """
        if self._incoming.fileno() < 0:
            return b""
        self._readable.poll()
        try:
            return self._incoming.recv(READ_BYTES)
        except ConnectionResetError:  # A left without having read everything
            return b""
