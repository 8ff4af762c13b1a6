"""Owns A's end of the line to an engine process. Apart from B's, which needs no asyncio and should not pay for it.

The loop only tells when the socket is ready; reading and writing are done here. An asyncio transport is closed as a
whole by the first write to an engine that has just died, and what the engine wrote before would never be read.
"""

from __future__ import annotations

import asyncio
import socket

from sojourn.ipc.channel import OnData
from sojourn.ipc.messages import ToEngine
from sojourn.ipc.socket_channel import READ_BYTES, FrameSplitter, framed


class SocketClientEnd:
    """A's end. What waits here is not bounded: admission bounds what A sends, and A always reads."""

    def __init__(self, half: socket.socket) -> None:
        """`half` belongs to this end from here on."""
        half.setblocking(False)
        self._socket = half
        self._splitter = FrameSplitter()
        self._unsent = bytearray()
        self._deaf = False  # nobody reads what is sent
        self._loop = asyncio.get_running_loop()

    def send(self, message: ToEngine) -> None:
        if self._deaf:
            return
        frame = framed(message)
        if self._unsent:
            self._unsent += frame
            return
        sent = self._write(frame)
        if sent < len(frame):
            self._unsent += memoryview(frame)[sent:]
            self._loop.add_writer(self._socket, self._write_unsent)

    def listen(self, on_data: OnData) -> None:
        self._loop.add_reader(self._socket, self._read, on_data)

    def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._deaf = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()

    def _read(self, on_data: OnData) -> None:
        """Takes all there is: where the engine died with something unread, uvloop calls once and never again.

        Passed on afterwards, or an engine that goes on sending meanwhile could keep the loop in here.
        """
        messages: list[bytes] = []
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:  # the engine left without having read everything
                data = b""
            if not data:
                self._loop.remove_reader(self._socket)
                break
            messages += self._splitter.feed(data)
            if len(data) < READ_BYTES:
                break
        for message in messages:
            on_data(message)

    def _write(self, data: bytes | bytearray) -> int:
        """How much of `data` needs no further thought."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except ConnectionError:  # the engine is gone; what it wrote before may still be read
            self._deaf = True
            return len(data)

    def _write_unsent(self) -> None:
        del self._unsent[: self._write(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._socket)
