"""Listeners that keep what they hear until a test asks for it, in order."""

from __future__ import annotations

import asyncio

from sojourn.ipc.channel import ClientEnd
from sojourn.ipc.messages import FromEngine, ToEngine, decode_from_engine
from sojourn.ipc.supervisor import Event, Supervisor


class HearingClient:
    """A client's end with `receive`."""

    def __init__(self, end: ClientEnd) -> None:
        self.end = end
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        end.listen(self._arrived.put_nowait)

    def send(self, message: ToEngine) -> None:
        self.end.send(message)

    def close(self) -> None:
        self.end.close()

    async def receive(self) -> FromEngine:
        """Raises msgspec.DecodeError on foreign bytes."""
        return decode_from_engine(await self._arrived.get())


class HearingSupervisor(Supervisor):
    """A supervisor that is started without a callback; its events wait in `events`."""

    events: asyncio.Queue[Event]

    async def start(self):
        self.events = asyncio.Queue()
        return await super().start(self.events.put_nowait)
