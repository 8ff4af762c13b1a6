"""Owns A's end of the ZeroMQ line. Apart from B's, which needs no asyncio and should not pay for it."""

from __future__ import annotations

import asyncio

import zmq

from sojourn.ipc.messages import FromEngine, ToEngine, decode_from_engine, encode
from sojourn.ipc.zmq_channel import Addresses


class ZmqClientEnd:
    """A's end. Without a high-water mark: admission bounds what A sends, and A always reads.

    Plain sockets beside the event loop: those of `zmq.asyncio` take more CPU time for a message than all we do with it.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.Context()
        self._outputs = self._context.socket(zmq.PULL)
        self._outputs.setsockopt(zmq.RCVHWM, 0)
        self._outputs.bind(addresses.outputs)
        self._requests = self._context.socket(zmq.PUSH)
        self._requests.setsockopt(zmq.SNDHWM, 0)
        self._requests.connect(addresses.requests)
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._readable = int(self._outputs.getsockopt(zmq.FD))  # a file descriptor
        self._loop.add_reader(self._readable, self._read)

    def send(self, message: ToEngine) -> None:
        if not self._requests.closed:
            self._requests.send(encode(message), zmq.NOBLOCK)

    async def receive(self) -> FromEngine:
        return decode_from_engine(await self._arrived.get())

    def close(self) -> None:
        if not self._outputs.closed:
            self._loop.remove_reader(self._readable)
        self._outputs.close(linger=0)
        self._requests.close(linger=0)
        self._context.term()

    def _read(self) -> None:
        """Takes all there is: ZeroMQ reports only that a socket with nothing to read has got something."""
        try:
            while True:
                self._arrived.put_nowait(self._outputs.recv(zmq.NOBLOCK))
        except zmq.Again:
            return
