"""Cuts a byte stream into server-sent events. Holds an unfinished line; never looks into an event."""

from __future__ import annotations


class EventParser:
    """`feed` takes bytes as they arrive and gives the data of the events that are complete now."""

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        *lines, self._tail = (self._tail + received).split(b"\n")
        events = []
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line.strip() and self._data:  # the empty line that ends an event
                events.append(b"\n".join(self._data))
                self._data = []
        return events
