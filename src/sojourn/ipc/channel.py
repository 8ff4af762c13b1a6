"""Owns the two ends of the line between A and B as interfaces. Never interprets a message.

Both directions keep their order and lose nothing while both ends live. Both implementations (`thread_channel`; and
`socket_channel` with `socket_client`) carry encoded bytes, so an engine in a thread sees exactly what one in a process
would. A hears of a message in the very callback that reads it: a queue and a task in between are some twenty calls more
for each token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sojourn.ipc.messages import FromEngine, ToEngine

OnData = Callable[[bytes], None]


class ClientEnd(Protocol):
    """Process A's end. Used on the event loop only."""

    def send(self, message: ToEngine) -> None:
        """Returns at once; what the engine has not taken yet waits. After its death, or `close`, it goes nowhere."""

    def listen(self, on_data: OnData) -> None:
        """`on_data` gets every message from the first one on, encoded: only the listener knows what foreign bytes mean.

        Called once. `on_data` is called by the loop, not from in here; it must neither raise nor close this end.
        """

    def close(self) -> None:
        """Idempotent. What was not delivered yet is dropped."""


class EngineEnd(Protocol):
    """Process B's end. `send` and `close` belong to the busy loop's thread, `receive` to the receive thread."""

    def send(self, message: FromEngine) -> None:
        """What was sent arrives, even if this end closes or its process dies right after. Waits only while A is so far
        behind that the line is full. After A's death it goes nowhere."""

    def receive(self) -> ToEngine | None:
        """Blocks for the next message; None for good once this end or A's is closed. Raises msgspec.DecodeError on
        foreign bytes."""

    def close(self) -> None:
        """Ends `receive`, in whichever thread it waits. Idempotent."""
