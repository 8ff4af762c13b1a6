"""Owns the two ends of the line between A and B as interfaces. Never interprets a message.

Both directions keep their order and lose nothing while both ends live. Both implementations (`thread_channel`; and
`socket_channel` with `socket_client`) carry encoded bytes, so an engine in a thread sees exactly what one in a process
would.
"""

from __future__ import annotations

from typing import Protocol

from sojourn.ipc.messages import FromEngine, ToEngine


class ClientEnd(Protocol):
    """Process A's end. Used on the event loop only."""

    def send(self, message: ToEngine) -> None:
        """Returns at once; what the engine has not taken yet waits. After its death, or `close`, it goes nowhere."""

    async def receive(self) -> FromEngine:
        """The next message; waits for ever after the engine's last one. Raises msgspec.DecodeError on foreign bytes."""

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
